"""The loader of rule pages, plug-ins, selection, the command `rule`."""

from __future__ import annotations

import json
import sys

import pytest

from attn_advisor.rules import registry
from attn_advisor.rules.page import PageError, fill, read_page
from attn_advisor.rules.selection import Layer, SelectionError, check_selectors, enabled

PAGE = """
code = "XYZ101"
name = "my-rule"
group = "custom"
severity = "warning"
message = "m"
what = "w"
why = "y"
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("code = ", "Invalid value"),
        (PAGE.replace('name = "my-rule"', ""), "key 'name' is missing"),
        (PAGE + 'colour = "red"', "unknown key 'colour'"),
        (PAGE.replace("XYZ101", "x1"), "code 'x1'"),
        (PAGE.replace('"warning"', '"loud"'), "severity 'loud'"),
        (PAGE + 'stage = "later"', "stage 'later'"),
        (PAGE + '[[case]]\nnote = "n"', "case 1: needs either 'bad' or 'ok'"),
        (PAGE + '[[way]]\nkey = "k"', "way 1: key 'text' is missing"),
        (PAGE + '[[way]]\ntext = "t"\nkind = "k"', "way 1: unknown key 'kind'"),
        (PAGE + '[[case]]\nbad = "x"\nrelation = "similar"', "case 1: relation 'similar'"),
    ],
)
def test_a_page_that_cannot_be_used_says_why(tmp_path, text, reason):
    (tmp_path / "page.toml").write_text(text)
    with pytest.raises(PageError, match=reason) as error:
        read_page(tmp_path / "page.toml")
    assert "page.toml" in str(error.value)


def test_two_pages_with_one_code(tmp_path):
    (tmp_path / "a.toml").write_text(PAGE)
    (tmp_path / "b.toml").write_text(PAGE)
    with pytest.raises(PageError, match="taken"):
        registry.load_pages([tmp_path])


def test_placeholders():
    assert fill("`{a}` and {b} and {}", {"a": "x"}) == "`x` and {b} and {}"


def test_every_shipped_page():
    rules = registry.load_pages([registry.shipped_pages()]).rules
    assert {"ATN000", "ATN001", "ATN101", "ATN102", "ATN103"} <= set(rules)
    for path in registry.shipped_pages().glob("*.toml"):
        rule = read_page(path)
        assert path.name == f"{rule.code}-{rule.name}.toml"
        assert rule.fix_safety, f"{rule.code} does not say what its fix may do"
        assert rule.fix != "some", f"{rule.code}: fix_safety starts with none of Safe, Unsafe, None"
        assert rule.prescription or rule.fix == "none"
        if rule.stage == "static" and rule.detector:
            assert rule.search, f"{rule.code} would make every file be parsed"
        if rule.stage == "static":
            assert any(case.bad for case in rule.cases) and all(
                compiles(case) for case in rule.cases if rule.code != "ATN000"
            )


def compiles(case) -> bool:
    for text in (case.bad, case.ok, case.fixed):
        compile(text, "case", "exec")
    return True


def test_plugin_rules_are_loaded(toy_rules):
    assert {"TOY101", "ATN101"} <= set(registry.registry().rules)
    assert registry.registry().detectors(["TOY101", "TOY102"]) == {"toy_rules:calls": (b"crash", b"slow")}


def test_an_entry_point_may_name_a_package_of_pages(toy_rules):
    (toy_rules / "toy_pages" / "__init__.py").touch()
    (toy_rules / "toy_rules-1.0.dist-info" / "entry_points.txt").write_text("[attn_advisor.rules]\ntoy = toy_pages\n")
    assert [folder.name for folder in registry.plugin_folders()] == ["toy_pages"]
    (toy_rules / "toy_rules-1.0.dist-info" / "entry_points.txt").write_text("[attn_advisor.rules]\ntoy = toy_rules\n")
    with pytest.raises(PageError, match="not a package"):
        registry.plugin_folders()


def test_a_broken_plugin_is_named(command, toy_rules):
    (toy_rules / "toy_pages" / "TOY101.toml").write_text("code = ")
    result = command("check", ".")
    assert result.exit_code == 2
    assert "TOY101.toml" in result.stderr
    (toy_rules / "toy_rules.py").write_text("pages = 1 / 0")
    sys.modules.pop("toy_rules", None)
    result = command("check", ".")
    assert result.exit_code == 2
    assert "plug-in toy (toy_rules:pages): ZeroDivisionError" in result.stderr


def test_selection_layers():
    rules = registry.load_pages([registry.shipped_pages()]).rules
    assert enabled(rules, [Layer(select=("ATN101",))], False) == {"ATN000", "ATN101"}
    assert enabled(rules, [Layer(select=("ATN1",)), Layer(select=("ATN001",))], False) == {"ATN000", "ATN001"}
    assert "ATN000" not in enabled(rules, [Layer(ignore=("ATN000",))], False)
    with pytest.raises(SelectionError, match="did you mean ATN101"):
        check_selectors(["atn101"], list(rules), "a test")


def test_command_rule(command):
    listed = command("rule")
    assert listed.exit_code == 0
    assert "ATN101  naive-attention" in listed.stdout
    page = command("rule", "atn101")
    for part in ("# ATN101 naive-attention", "## Why", "## Fix safety", "## Example", "```python", "## Not reported"):
        assert part in page.stdout
    assert command("rule", "naive-attention").stdout == page.stdout
    ways = command("rule", "ATN103").stdout
    assert "### Capped scores" in ways and ways.index("## What to do") < ways.index("score_mod=") < ways.index(
        "## Fix safety"
    )
    assert json.loads(command("rule", "--output-format", "json", "ATN101").stdout)["code"] == "ATN101"
    unknown = command("rule", "ATN110")
    assert unknown.exit_code == 2
    assert "did you mean" in unknown.stderr


def test_scaffold_of_a_new_rule(command, tmp_path):
    assert command("rule", "--new", "my-rule", "XYZ101").exit_code == 0
    assert read_page(tmp_path / "rules" / "XYZ101-my-rule.toml").name == "my-rule"
    assert command("rule", "--new", "my-rule", "XYZ101").exit_code == 2
    assert command("rule", "--new", "my-rule", "ATN101").exit_code == 2
    assert command("rule", "--new", "my-rule").exit_code == 2
