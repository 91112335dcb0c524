"""Reports: findings in the forms that people and other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from attn_advisor.report.entries import Entry, Options


def write(form: str, entries: Sequence[Entry], out: TextIO, options: Options) -> None:
    """Write the findings in one of settings.OUTPUT_FORMATS."""
    if form == "full":
        from attn_advisor.report.full import write_full

        write_full(entries, out, options)
    elif form in ("concise", "grouped"):
        from attn_advisor.report.concise import write_concise, write_grouped

        (write_concise if form == "concise" else write_grouped)(entries, out, options)
    elif form in ("json", "json-lines"):
        from attn_advisor.report.json import write_json, write_json_lines

        (write_json if form == "json" else write_json_lines)(entries, out)
    elif form == "sarif":
        from attn_advisor.report.sarif import write_sarif

        write_sarif(entries, out)
    else:
        from attn_advisor.report import ci

        {"github": ci.write_github, "gitlab": ci.write_gitlab, "junit": ci.write_junit}[form](entries, out)
