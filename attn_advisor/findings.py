"""What the analysis says: detections (facts of one place) and findings (a detection under its rule).

Positions are offsets into the decoded text of the file, in Unicode code points; reports turn them into rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Applicability = Literal["safe", "unsafe"]
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, order=True)
class Edit:
    """Replace text[start:end] with content."""

    start: int
    end: int
    content: str


@dataclass(frozen=True)
class Fix:
    """Edits that belong together: all are made or none."""

    applicability: Applicability
    message: str
    edits: tuple[Edit, ...]


@dataclass
class Detection:
    """One place a detector speaks about.

    `values` fill the `{placeholders}` of the rule page's message and prescription; `facts` go to the JSON as they are.
    """

    code: str
    start: int
    end: int
    function: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    blockers: list[str] = field(default_factory=list)
    assumes: list[str] = field(default_factory=list)
    fix: Fix | None = None
    verdict: Literal["exact", "guarded", "refuse"] | None = None
    severity: Severity | None = None  # in place of the page's, where it depends on the case
    way: str = ""  # key of one of the page's ways, whose text stands in place of the page's prescription


@dataclass
class Finding:
    """A detection with its rule's texts, as every report shows it."""

    code: str
    name: str
    severity: Severity
    message: str
    start: int
    end: int
    function: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    blockers: list[str] = field(default_factory=list)
    assumes: list[str] = field(default_factory=list)
    prescription: str = ""
    fix: Fix | None = None
    verdict: str | None = None
    url: str = ""
