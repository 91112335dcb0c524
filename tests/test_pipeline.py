"""One file and many: the byte search, processes, the cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from attn_advisor import pipeline
from attn_advisor.cache import Cache
from attn_advisor.pipeline import Checker, check_text, fix_text
from attn_advisor.settings import Overrides, Resolver

pytestmark = pytest.mark.usefixtures("toy_rules")

FIXTURES = Path(__file__).parents[1] / "fixtures"
SLOW = "x = slow(1)\n"


def settings(folder: Path, **overrides):
    return Resolver(Overrides(**overrides), folder).for_folder(folder)


def test_check_text_and_fix_text():
    (found,) = check_text(SLOW)
    assert (found.code, found.start, found.end) == ("TOY101", 4, 11)
    text, fixed, remaining = fix_text(SLOW)
    assert text == "from lib import fast\nx = fast(1)\n"
    assert ([f.code for f in fixed], remaining) == (["TOY101"], [])


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_fixes_take_the_line_endings_of_the_file(ending):
    text, _, _ = fix_text(f"x = slow(1){ending}y = 2{ending}")
    assert text == f"from lib import fast{ending}x = fast(1){ending}y = 2{ending}"


def test_text_that_cannot_be_parsed():
    (found,) = check_text("def f(:\n    slow(1)\n")
    assert found.code == "ATN000"
    assert fix_text("def f(:\n")[0] == "def f(:\n"


def test_strings_that_only_look_wrong_give_no_warning(recwarn):
    assert check_text("x = '\\d'\n") == []
    assert check_text("assert (1, 'slow')\n") == []
    assert not recwarn.list


def test_what_only_the_compiler_minds_is_not_reported():
    assert check_text("return 1\nnonlocal x\n") == []


def test_a_failing_detector_raises_for_callers_of_the_library():
    with pytest.raises(RuntimeError, match="toy failure"):
        check_text("crash(1)\n")


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.py")), ids=lambda path: path.name)
def test_the_byte_search_loses_no_finding(path):
    text = path.read_text()
    its = settings(path.parent, isolated=True)
    assert Checker(str(path), its).check(text) == Checker(str(path), its, search=False).check(text)


def test_a_file_without_the_searched_strings_is_not_analysed(tmp_path):
    checker = Checker(str(tmp_path / "a.py"), settings(tmp_path))
    checker.check("import math\n")
    assert not checker.analysed
    checker.check(SLOW)
    assert checker.analysed


def test_a_worker_that_dies_loses_only_its_file(tmp_path, toy_rules):
    (toy_rules / "toy_rules.py").write_text(
        (toy_rules / "toy_rules.py")
        .read_text()
        .replace('raise RuntimeError("toy failure")', "__import__('os')._exit(3)")
    )
    jobs = []
    for number in range(pipeline.POOL_FILES + 4):
        path = tmp_path / f"m{number}.py"
        path.write_text("crash(1)\n" if number == 5 else SLOW)
        jobs.append((str(path), settings(tmp_path)))
    results = list(pipeline.run(jobs, workers=2))
    assert [result.path for result in results] == [path for path, _ in jobs]
    assert [number for number, result in enumerate(results) if result.errors] == [5]
    assert "died" in results[5].errors[0]
    assert all(result.findings for number, result in enumerate(results) if number != 5)


def count_analyses(monkeypatch) -> list[str]:
    seen: list[str] = []
    original = pipeline.check_data

    def counting(path, *args, **kwargs):
        seen.append(os.path.basename(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(pipeline, "check_data", counting)
    return seen


def run(command, *args):
    result = command("check", "--output-format", "json", "--cache-dir", "cache", *args)
    return json.loads(result.stdout)


def test_cache(command, tmp_path, monkeypatch):
    monkeypatch.delenv("ATTN_ADVISOR_NO_CACHE", raising=False)
    (tmp_path / "a.py").write_text(SLOW)
    (tmp_path / "b.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTN_ADVISOR_NO_CACHE", "")
    seen = count_analyses(monkeypatch)
    first = run(command, ".")
    assert seen == ["a.py", "b.py"]
    assert run(command, ".") == first
    assert seen == ["a.py", "b.py"]
    (tmp_path / "b.py").write_text("y = slow(2)\n")
    assert len(run(command, ".")) == 2
    assert seen == ["a.py", "b.py", "b.py"]
    run(command, "--no-cache", "a.py")
    run(command, "--ignore", "TOY102", "a.py")
    assert seen[3:] == ["a.py", "a.py"]
    run(command, "--fix", ".")
    assert (tmp_path / "a.py").read_text() == "from lib import fast\nx = fast(1)\n"
    assert run(command, ".") == []
    assert (tmp_path / "cache" / ".gitignore").exists()


def test_a_damaged_cache_is_an_empty_one(command, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTN_ADVISOR_NO_CACHE", "")
    (tmp_path / "a.py").write_text(SLOW)
    first = run(command, "a.py")
    (path,) = (tmp_path / "cache").glob("*.json")
    for damage in ("", "[]", '{"files": {"x": 1}, "consulted": {}}', path.read_text()[:-20]):
        path.write_text(damage)
        assert run(command, "a.py") == first


def test_a_changed_module_that_was_looked_at_makes_analysed_files_new(tmp_path):
    (tmp_path / "base.py").write_text("x = 1\n")
    its = settings(tmp_path, values={"cache_dir": tmp_path / "cache"})
    cache = Cache(its)
    stem = (str(tmp_path / "base"),)
    cache.put(pipeline.FileResult("analysed.py", analysed=True, consulted=stem), b"1")
    cache.put(pipeline.FileResult("syntax.py"), b"2")
    cache.save()
    assert Cache(its).get("analysed.py", b"1") == []
    (tmp_path / "base.py").write_text("x = 12345\n")
    again = Cache(its)
    assert again.get("analysed.py", b"1") is None
    assert again.get("syntax.py", b"2") == []
