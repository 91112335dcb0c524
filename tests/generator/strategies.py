"""Generated programs as a hypothesis strategy, which shrinks towards the plainest spelling."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.generator.choices import Choices
from tests.generator.programs import Program, write


@st.composite
def programs(draw: st.DrawFn) -> Program:
    return write(Choices(lambda name, count: draw(st.integers(0, count - 1), label=name)))
