"""Where a generated program's decisions come from: a seed, hypothesis, or a recorded list that can be shrunk."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Named decisions. The first option is the plainest, so that programs shrink towards index 0.

    `index(name, count)` decides; `made` records every decision, so that `Choices(recorded(made))` gives the same program again.
    """

    def __init__(self, index: Callable[[str, int], int]) -> None:
        self._index = index
        self.made: dict[str, int] = {}

    def pick(self, name: str, options: Sequence[T]) -> T:
        if name in self.made:
            raise KeyError(f"decided twice: {name}")
        at = self._index(name, len(options)) if len(options) > 1 else 0
        self.made[name] = at
        return options[at]

    def often(self, name: str, options: Sequence[T], weight: int = 3) -> T:
        """The first option `weight` times as often as each other."""
        return self.pick(name, [options[0]] * weight + list(options[1:]))

    def flip(self, name: str, one_in: int = 2) -> bool:
        return self.pick(name, [False] * (one_in - 1) + [True])


def seeded(seed: int) -> Choices:
    random_numbers = random.Random(seed)
    return Choices(lambda name, count: random_numbers.randrange(count))


def recorded(made: Mapping[str, int]) -> Choices:
    """The same decisions again; what was not decided then is 0."""
    return Choices(lambda name, count: min(made.get(name, 0), count - 1))


def shrink(made: Mapping[str, int], fails: Callable[[Mapping[str, int]], bool]) -> dict[str, int]:
    """Fewer and smaller decisions for which `fails` still holds."""
    current = {name: at for name, at in made.items() if at}
    changed = True
    while changed:
        changed = False
        for names in _groups(list(current)):
            smaller = {name: at for name, at in current.items() if name not in names}
            if len(smaller) < len(current) and fails(smaller):
                current, changed = smaller, True
        for name in list(current):
            for at in range(1, current.get(name, 0)):
                if fails(current | {name: at}):
                    current, changed = current | {name: at}, True
                    break
    return current


def _groups(names: list[str]) -> Iterable[list[str]]:
    """All, halves, ..., each."""
    size = len(names)
    while size:
        for start in range(0, len(names), size):
            yield names[start : start + size]
        size //= 2
