"""What a worker is asked to do: plain data that travels as JSON. No torch here."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

CANDIDATES = ("as_written", "inplace", "sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math")
COMPILED = ("compile", "compile_max_autotune", "flex")
FLASH_ATTN = ("flash_attn_2", "flash_attn_3", "flash_attn_4")
ALL_CANDIDATES = CANDIDATES + COMPILED + FLASH_ATTN

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Sizes:
    """Batch, heads, query length, key length, head size of one attention."""

    B: int
    H: int
    L: int
    S: int
    D: int

    @property
    def width(self) -> int:
        """Embedding width: heads times head size."""
        return self.H * self.D

    def of(self, letter: str) -> int:
        """Length of an axis: b, h, l, s, d (query and key width), e (value width), c (embedding), n (b*h), 1."""
        table = {"b": self.B, "h": self.H, "l": self.L, "s": self.S, "d": self.D, "e": self.D, "c": self.width}
        table |= {"n": self.B * self.H, "1": 1}
        return table[letter]

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in asdict(self).items())


CUDA_SIZES = Sizes(4, 16, 4096, 4096, 64)
CPU_SIZES = Sizes(2, 8, 1024, 1024, 64)


def parse_sizes(text: str, default: Sizes) -> Sizes:
    """`B=4,H=16,S=4096` over the defaults; L defaults to S. Raises ValueError naming the bad part."""
    given: dict[str, int] = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        match = re.fullmatch(r"([BHLSD])=([1-9]\d*)", part)
        if not match:
            raise ValueError(
                f"{part!r}: expected B, H, L, S or D, an equals sign and a positive number (B=4,H=16,S=4096,D=64)"
            )
        given[match[1]] = int(match[2])
    if "S" in given and "L" not in given:
        given["L"] = given["S"]
    elif "L" in given and "S" not in given:
        given["S"] = given["L"]
    return Sizes(**{**asdict(default), **given})


@dataclass
class Job:
    """One target (a detection) with everything to measure about it.

    `start` and `end` are offsets of the detection in `text`, `edits` its fix as [start, end, content]. `pairs` lists the
    (sizes, dtype, mode) to measure; an empty sizes or dtype entry means the device's default.
    """

    path: str
    root: str | None
    text: str
    start: int
    end: int
    function: str
    facts: dict[str, Any]
    blockers: list[str]
    fixed_text: str | None
    edits: list[list[Any]]
    line: int
    shapes: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=lambda: ["forward"])
    device: str = "auto"
    level: str = "auto"
    candidates: list[str] = field(default_factory=lambda: list(CANDIDATES))
    budget: float = 6.0
    """Seconds for the timed rounds of the target."""
    seed: int = 0
    min_speedup: float = 1.1
    overrides: dict[str, Any] = field(default_factory=dict)
    skip: dict[str, str] = field(default_factory=dict)
    """Candidates not to run, with the reason: they crashed or hung in an earlier worker."""
    recorded: dict[str, Any] = field(default_factory=dict)
    """Of a call in a user's script: the `file` that holds its inputs, the `script`, and how many `calls` had such inputs."""
    done: int = 0
    """How many results an earlier worker already gave."""

    @property
    def parts(self) -> int:
        """How many measurements share the budget."""
        return max(1, len(self.shapes)) * max(1, len(self.dtypes)) * len(self.modes)

    @property
    def target(self) -> str:
        """How the target is named on the command line and in reports."""
        return f"{self.path}:{self.line}"
