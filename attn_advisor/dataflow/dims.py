"""Symbolic sizes of axes.

A size is a `Dim`: an integer factor times a sorted tuple of atoms (keys of values such as `x.size(1)` or `self.heads`). Equal dims are equal sizes
on every input; different dims may still be equal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dim:
    """factor * product of atoms; denominators are atoms of `below`."""

    factor: float = 1
    above: tuple[Any, ...] = ()
    below: tuple[Any, ...] = ()

    def __mul__(self, other: Dim) -> Dim:
        return _reduced(self.factor * other.factor, [*self.above, *other.above], [*self.below, *other.below])

    def __truediv__(self, other: Dim) -> Dim:
        return _reduced(
            self.factor / other.factor if other.factor else 0, [*self.above, *other.below], [*self.below, *other.above]
        )


def _reduced(factor: float, above: list[Any], below: list[Any]) -> Dim:
    up, down = Counter(above), Counter(below)
    common = up & down
    return Dim(
        factor, tuple(sorted((up - common).elements(), key=repr)), tuple(sorted((down - common).elements(), key=repr))
    )


def atom(key: Any) -> Dim:
    return Dim(1, (key,))


Shape = tuple[Dim, ...]
