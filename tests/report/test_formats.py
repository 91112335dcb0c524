"""Report formats: what other programs read, and what people see."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from attn_advisor import report
from attn_advisor.findings import Edit, Finding, Fix
from attn_advisor.pipeline import FileResult
from attn_advisor.report.entries import Options, entries
from attn_advisor.settings import OUTPUT_FORMATS

TEXT = (
    "def forward(self, q, k, v):\n"
    "    # é, 𝒙 and a tab:\t.\n"
    "    s = q @ k.mT\n"
    "    s = s.softmax(-1)\n"
    "    return s @ v\n"
)  # fmt: skip
START, END = TEXT.index("s = q"), TEXT.index(" @ v") + 4


def sample(**changes) -> Finding:
    values = {
        "code": "ATN101",
        "name": "naive-attention",
        "severity": "warning",
        "message": "Attention, written \x1b[31mout\n<&>",
        "start": START,
        "end": END,
        "function": "Net.forward",
        "facts": {"query": "q", "scale": None},
        "blockers": ["line 4 does something"],
        "assumes": ["something else"],
        "prescription": "Call SDPA.",
        "fix": Fix("safe", "Call SDPA", (Edit(START, END, "return sdpa(q, k, v)"), Edit(0, 0, "import sdpa\n"))),
        "verdict": "exact",
    }
    return Finding(**{**values, **changes})


def write(form: str, *findings: Finding, text: str = TEXT, options: Options | None = None) -> str:
    out = io.StringIO()
    found = entries([FileResult("/proj/pkg/a b.py", list(findings), text)], Path("/proj"))
    report.write(form, found, out, options or Options())
    return out.getvalue()


def test_json_keys_are_those_of_ruff_and_more():
    (found,) = json.loads(write("json", sample()))
    assert list(found) == (
        "cell code name severity message filename location end_location fix noqa_row url function facts blockers assumes "
        "prescription verdict"
    ).split()  # fmt: skip
    assert (found["filename"], found["cell"], found["url"], found["noqa_row"]) == ("/proj/pkg/a b.py", None, None, 3)
    assert (found["location"], found["end_location"]) == ({"row": 3, "column": 5}, {"row": 5, "column": 17})
    assert found["fix"] == {
        "applicability": "safe",
        "message": "Call SDPA",
        "edits": [
            {"content": "import sdpa\n", "location": {"row": 1, "column": 1}, "end_location": {"row": 1, "column": 1}},
            {
                "content": "return sdpa(q, k, v)",
                "location": {"row": 3, "column": 5},
                "end_location": {"row": 5, "column": 17},
            },
        ],
    }


def test_json_without_fix_or_verdict():
    (found,) = json.loads(write("json", sample(fix=None, verdict=None)))
    assert found["fix"] is None
    assert "verdict" not in found


def test_columns_are_code_points():
    start = TEXT.index("𝒙")
    (found,) = json.loads(write("json", sample(start=start, end=start + 1, fix=None)))
    assert (found["location"]["column"], found["end_location"]["column"]) == (10, 11)


def test_json_lines():
    lines = write("json-lines", sample(), sample()).splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0]) == json.loads(write("json", sample()))[0]


@pytest.mark.parametrize("form", OUTPUT_FORMATS)
def test_no_findings(form):
    text = write(form)
    if form in ("json", "gitlab"):
        assert json.loads(text) == []
    elif form == "junit":
        assert ElementTree.fromstring(text).get("failures") == "0"
    elif form == "sarif":
        assert json.loads(text)["runs"][0]["results"] == []
    else:
        assert text in ("", "All checks passed!\n")


def test_full_marks_the_whole_attention():
    expected = """\
ATN101 [*] Attention, written �[31mout <&>
 --> pkg/a b.py:3:5, in Net.forward
  |
1 |   def forward(self, q, k, v):
2 |       # é, 𝒙 and a tab:   .
3 | /     s = q @ k.mT
4 | |     s = s.softmax(-1)
5 | |     return s @ v
  | |________________^
  |
"""
    text = write("full", sample(message="Attention, written \x1b[31mout <&>"))
    assert text.startswith(expected)
    for line in ("= do: Call SDPA.", "= no safe fix: line 4 does something", "= assumes: something else"):
        assert line in text
    assert "  = fix: Call SDPA (safe: `--fix`)\n" in text
    assert "1 + import sdpa\n" in text
    assert "3 -     s = q @ k.mT\n" in text
    assert "4 +     return sdpa(q, k, v)\n" in text
    assert text.endswith("Found 1 finding.\n[*] 1 fixable with `--fix`.\n")
    assert "\x1b" not in text


def test_full_leaves_out_the_middle_of_a_long_finding():
    text = "a = 1\n" + "".join(f"b{n} = 1\n" for n in range(60))
    shown = write("full", sample(start=0, end=len(text) - 1, fix=None), text=text)
    assert " 1 | / a = 1" in shown and "61 | | b59 = 1" in shown
    assert "... |" not in shown and ".. | |" in shown
    assert len(shown.splitlines()) < 40


def test_full_underlines_one_row():
    start = TEXT.index("q @")
    shown = write("full", sample(start=start, end=start + 8, fix=None))
    assert "3 |     s = q @ k.mT\n  |         ^^^^^^^^\n" in shown


def test_unsafe_fixes_are_counted_apart():
    unsafe = sample(fix=Fix("unsafe", "Call SDPA", (Edit(START, END, "x"),)))
    assert write("concise", unsafe).endswith("Found 1 finding.\nNo safe fixes; 1 more with `--unsafe-fixes`.\n")
    assert "[*]" in write("concise", unsafe, options=Options(unsafe=True))


def test_concise_and_grouped():
    line = "3:5: ATN101 [*] message"
    assert write("concise", sample(message="message")).splitlines()[0] == f"pkg/a b.py:{line}"
    grouped = write("grouped", sample(message="message")).splitlines()
    assert grouped[:2] == ["pkg/a b.py:", "  3:5 ATN101 [*] message"]


def test_github():
    line = write("github", sample(severity="error"))
    assert line.count("\n") == 1
    assert line.startswith("::error title=attn-advisor (ATN101),file=pkg/a b.py,line=3,col=5,endLine=5,endColumn=17::")
    assert "%0A<&>" in line
    assert write("github", sample(severity="info")).startswith("::notice ")


def test_gitlab_fingerprints_differ():
    found = json.loads(write("gitlab", sample(), sample()))
    assert found[0]["fingerprint"] != found[1]["fingerprint"]
    assert found[0]["location"] == {
        "path": "pkg/a b.py",
        "positions": {"begin": {"line": 3, "column": 5}, "end": {"line": 5, "column": 17}},
    }
    assert found[0]["severity"] == "minor"


def test_junit_is_well_formed():
    root = ElementTree.fromstring(write("junit", sample(), sample()))
    assert (root.get("tests"), root.get("failures")) == ("2", "2")
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None and "<&>" in (failure.text or "")


# The parts of the SARIF 2.1.0 schema that these logs use.
REGION = {
    "type": "object",
    "required": ["startLine", "startColumn", "endLine", "endColumn"],
    "additionalProperties": {"type": "integer", "minimum": 1},
}
TEXT_MESSAGE = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
ARTIFACT = {"type": "object", "required": ["uri"], "properties": {"uri": {"type": "string", "pattern": "^[^ \\\\]+$"}}}
SARIF = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "properties": {
                            "driver": {
                                "required": ["name", "version", "rules"],
                                "properties": {
                                    "rules": {
                                        "items": {
                                            "required": ["id", "shortDescription", "fullDescription", "help"],
                                            "properties": {
                                                "shortDescription": TEXT_MESSAGE,
                                                "fullDescription": TEXT_MESSAGE,
                                                "help": TEXT_MESSAGE,
                                                "defaultConfiguration": {
                                                    "properties": {
                                                        "level": {"enum": ["none", "note", "warning", "error"]}
                                                    }
                                                },
                                            },
                                        }
                                    }
                                },
                            }
                        }
                    },
                    "results": {
                        "items": {
                            "required": ["ruleId", "ruleIndex", "level", "message", "locations"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": TEXT_MESSAGE,
                                "locations": {
                                    "items": {
                                        "required": ["physicalLocation"],
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation", "region"],
                                                "properties": {"artifactLocation": ARTIFACT, "region": REGION},
                                            }
                                        },
                                    }
                                },
                                "fixes": {
                                    "items": {
                                        "required": ["artifactChanges"],
                                        "properties": {
                                            "description": TEXT_MESSAGE,
                                            "artifactChanges": {
                                                "minItems": 1,
                                                "items": {
                                                    "required": ["artifactLocation", "replacements"],
                                                    "properties": {
                                                        "artifactLocation": ARTIFACT,
                                                        "replacements": {
                                                            "minItems": 1,
                                                            "items": {
                                                                "required": ["deletedRegion"],
                                                                "properties": {"deletedRegion": REGION},
                                                            },
                                                        },
                                                    },
                                                },
                                            },
                                        },
                                    }
                                },
                            },
                        }
                    },
                },
            },
        },
    },
}


def test_sarif():
    log = json.loads(write("sarif", sample(), sample(code="ATN103", severity="info", fix=None)))
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["ATN101", "ATN103"]
    assert [result["level"] for result in run["results"]] == ["warning", "note"]
    assert re.search(r"a%20b\.py$", run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
    assert "fixes" in run["results"][0] and "fixes" not in run["results"][1]
