"""The command `check`: options, exit status, bad input."""

from __future__ import annotations

import json
import os
import re
import stat
import time

import pytest

pytestmark = pytest.mark.usefixtures("toy_rules")

SLOW = "x = slow(1)\n"
FAST = "from lib import fast\nx = fast(1)\n"


def test_finds_and_explains(command):
    result = command("check", "a.py", write={"a.py": SLOW})
    assert result.exit_code == 1
    for part in (
        "TOY101 [*] `slow` is slow",
        "a.py:1:5",
        "x = slow(1)",
        "^^^^^^^",
        "why: They are slow.",
        "do: Use `fast`.",
    ):
        assert part in result.stdout
    assert "1 fixable with `--fix`" in result.stdout


def test_nothing_found(command):
    result = command("check", "a.py", write={"a.py": "x = 1\n"})
    assert (result.exit_code, result.stdout) == (0, "All checks passed!\n")


def test_info_alone_passes(command):
    result = command("check", "a.py", write={"a.py": "slow_info(1)\n"})
    assert result.exit_code == 0
    assert "TOY102" in result.stdout


def test_default_path_is_the_working_folder(command):
    assert command("check", write={"pkg/a.py": SLOW}).exit_code == 1


def test_fix(command, tmp_path):
    result = command("check", "--fix", "--show-fixes", "a.py", write={"a.py": SLOW})
    assert result.exit_code == 0
    assert (tmp_path / "a.py").read_text() == FAST
    assert "1 x TOY101 (slow-call)" in result.stderr
    assert command("check", "--fix", "a.py").exit_code == 0
    assert (tmp_path / "a.py").read_text() == FAST


def test_unsafe_fix_only_on_request(command, tmp_path):
    result = command("check", "--fix", "a.py", write={"a.py": "slow_unsafe(1)\n"})
    assert result.exit_code == 1
    assert "1 more with `--unsafe-fixes`" in result.stdout
    assert (tmp_path / "a.py").read_text() == "slow_unsafe(1)\n"
    assert command("check", "--fix", "--unsafe-fixes", "a.py").exit_code == 0
    assert (tmp_path / "a.py").read_text() == "from lib import fast\nfast(1)\n"


def test_diff(command, tmp_path):
    result = command("check", "--diff", "a.py", write={"a.py": SLOW})
    assert result.exit_code == 1
    assert result.stdout == "--- a.py\n+++ a.py\n@@ -1 +1,2 @@\n-x = slow(1)\n+from lib import fast\n+x = fast(1)\n"
    assert (tmp_path / "a.py").read_text() == SLOW
    assert command("check", "--diff", "b.py", write={"b.py": "x = 1\n"}).exit_code == 0


def test_diff_of_a_file_without_a_last_newline(command):
    result = command("check", "--diff", "a.py", write={"a.py": "x = slow(1)"})
    assert result.stdout.count("\\ No newline at end of file\n") == 2


def test_fix_only(command, tmp_path):
    result = command("check", "--fix-only", "a.py", write={"a.py": "slow(1)\nslow_unsafe(2)\n"})
    assert (result.exit_code, result.stdout) == (0, "")
    assert "Fixed 1 finding." in result.stderr
    assert (tmp_path / "a.py").read_text() == "from lib import fast\nfast(1)\nslow_unsafe(2)\n"


def test_exit_status_options(command):
    assert command("check", "--exit-zero", "a.py", write={"a.py": SLOW}).exit_code == 0
    assert command("check", "--fix", "--exit-non-zero-on-fix", "a.py").exit_code == 1
    assert command("check", "--fix", "--exit-non-zero-on-fix", "a.py").exit_code == 0


def test_select_and_ignore(command):
    both = {"a.py": "slow(1)\nslow_info(1)\n"}
    assert "TOY101" not in command("check", "--select", "TOY102", "a.py", write=both).stdout
    assert "TOY102" in command("check", "--select", "ATN,TOY1", "a.py").stdout
    assert "TOY101" not in command("check", "--ignore", "TOY101", "a.py").stdout
    assert "TOY101" in command("check", "--select", "ATN", "--extend-select", "TOY101", "a.py").stdout
    assert command("check", "--per-file-ignores", "a.py:TOY", "a.py").stdout == "All checks passed!\n"
    assert command("check", "--per-file-ignores", "b/*.py:TOY", "a.py").exit_code == 1


def test_preview_rules_need_preview(command):
    assert command("check", "a.py", write={"a.py": "slow_preview(1)\n"}).exit_code == 0
    assert command("check", "--preview", "a.py").exit_code == 1
    assert command("check", "--select", "TOY103", "a.py").exit_code == 0


@pytest.mark.parametrize("option", ["--select", "--ignore", "--extend-select"])
def test_unknown_rule_code(command, option):
    result = command("check", option, "TOY191", "a.py", write={"a.py": SLOW})
    assert result.exit_code == 2
    assert "Unknown rule selector `TOY191`" in result.stderr
    assert "did you mean TOY101?" in result.stderr


def test_statistics(command):
    result = command("check", "--statistics", "a.py", write={"a.py": "slow(1)\nslow(2)\nslow_info(1)\n"})
    assert result.stdout == "2\tTOY101\t[*] slow-call\n1\tTOY102\t[ ] slow-info\nFound 3 findings.\n"
    table = json.loads(command("check", "--statistics", "--output-format", "json", "a.py").stdout)
    assert table[0] == {"code": "TOY101", "name": "slow-call", "count": 2, "fixable": 2}


def test_noqa_and_ignore_noqa(command):
    assert command("check", "a.py", write={"a.py": "x = slow(1)  # noqa: TOY101\n"}).exit_code == 0
    assert command("check", "--ignore-noqa", "a.py").exit_code == 1


def test_add_noqa(command, tmp_path):
    result = command("check", "--add-noqa", "a.py", write={"a.py": 'x = slow(1)\ny = slow("""\n""")\n'})
    assert result.exit_code == 0
    assert "Added 2 noqa directives." in result.stderr
    assert (tmp_path / "a.py").read_text() == 'x = slow(1)  # noqa: TOY101\ny = slow("""\n""")  # noqa: TOY101\n'
    assert command("check", "a.py").exit_code == 0


def test_output_file(command, tmp_path):
    result = command("check", "-o", "out.json", "--output-format", "json", "a.py", write={"a.py": SLOW})
    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads((tmp_path / "out.json").read_text())[0]["code"] == "TOY101"
    assert command("check", "-o", "absent/out.json", "a.py").exit_code == 2


def test_quiet(command):
    assert command("check", "-q", "a.py", write={"a.py": "x = 1\n"}).output == ""
    assert "Found" not in command("check", "-q", "b.py", write={"b.py": SLOW}).output


def test_baseline(command, tmp_path):
    assert command("check", "--write-baseline", "known.json", "a.py", write={"a.py": SLOW}).exit_code == 0
    assert command("check", "--baseline", "known.json", "a.py").exit_code == 0
    moved = command("check", "--baseline", "known.json", "a.py", write={"a.py": "import os\n\n\n" + SLOW})
    assert moved.exit_code == 0
    more = command("check", "--baseline", "known.json", "a.py", write={"a.py": SLOW + "y = slow(1)\n"})
    assert (more.exit_code, more.stdout.count("TOY101")) == (1, 1)
    assert command("check", "--baseline", "absent.json", "a.py").exit_code == 2
    broken = command("check", "--baseline", "bad.json", "a.py", write={"bad.json": '{"version": 9}'})
    assert broken.exit_code == 2
    assert "bad.json" in broken.stderr


def test_standard_input(command):
    found = command("check", "-", stdin=SLOW)
    assert found.exit_code == 1
    fixed = command("check", "--fix", "-", stdin=SLOW)
    assert (fixed.exit_code, fixed.stdout) == (0, FAST)
    diff = command("check", "--diff", "--stdin-filename", "pkg/a.py", "-", stdin=SLOW)
    assert diff.stdout.startswith("--- pkg/a.py\n")
    untouched = command("check", "--fix", "-", stdin=b"\xef\xbb\xbfx = 1\r\n")
    assert untouched.stdout_bytes == b"\xef\xbb\xbfx = 1\r\n"


def test_standard_input_that_cannot_be_read_is_passed_through(command):
    result = command("check", "--fix", "-", stdin=b"x = '\xff'\n")
    assert (result.exit_code, result.stdout_bytes) == (1, b"x = '\xff'\n")
    assert "ATN000" in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "row", "reason"),
    [
        ("syntax.py", b"x = 1\ndef f(:\n", 2, "syntax error"),
        ("tabs.py", b"if x:\n\ty = 1\n        z = 2\n", 3, "inconsistent use of tabs"),
        ("binary.py", b"\x00\x01\x02", 1, "binary file"),
        ("latin.py", b"x = 1\ny = '\xe9'\n", 2, "not valid utf-8: byte 0xe9 in line 2"),
        ("cookie.py", b"# coding: klingon\n", 1, "'klingon'"),
        ("utf16.py", "x = 1".encode("utf-16"), 1, "UTF-16"),
        ("deep.py", b"x = " + b"(" * 5000 + b")" * 5000, 1, "nested"),
    ],
)
def test_unreadable_files_are_findings_and_the_others_go_on(command, name, content, row, reason):
    result = command("check", "--output-format", "json", ".", write={name: content, "a.py": SLOW})
    assert result.exit_code == 1
    by_code = {found["code"]: found for found in json.loads(result.stdout)}
    assert set(by_code) == {"ATN000", "TOY101"}
    assert by_code["ATN000"]["filename"].endswith(name)
    assert reason in by_code["ATN000"]["message"]
    assert by_code["ATN000"]["location"]["row"] == row or by_code["ATN000"]["facts"]["row"] == row
    assert by_code["ATN000"]["severity"] == "error"


def test_empty_file(command):
    assert command("check", "a.py", write={"a.py": ""}).exit_code == 0


def test_missing_path_is_a_finding(command):
    result = command("check", "--output-format", "concise", "absent.py", "a.py", write={"a.py": SLOW})
    assert result.exit_code == 1
    assert "absent.py:1:1: ATN000 This file cannot be checked: No such file or directory" in result.stdout
    assert "TOY101" in result.stdout


def test_selecting_other_rules_still_reports_unreadable_files(command):
    assert "ATN000" in command("check", "--select", "TOY101", ".", write={"a.py": "def f(:\n"}).stdout
    assert command("check", "--ignore", "ATN000", ".").exit_code == 0


def test_read_only_file_is_not_fixed(command, tmp_path):
    (tmp_path / "a.py").write_text(SLOW)
    (tmp_path / "a.py").chmod(stat.S_IRUSR)
    result = command("check", "--fix", ".", write={"b.py": SLOW})
    assert result.exit_code == 2
    assert "a.py: not fixed: the file is read-only" in result.stderr
    assert (tmp_path / "a.py").read_text() == SLOW
    assert "TOY101" in result.stdout
    assert (tmp_path / "b.py").read_text() == FAST


def test_a_failing_detector_stops_neither_the_file_nor_the_run(command):
    result = command("check", ".", write={"a.py": "crash(1)\n# noqa: ATN101\n", "b.py": SLOW})
    assert result.exit_code == 2
    assert "a.py: internal error in toy_rules:calls: RuntimeError: toy failure" in result.stderr
    assert "Traceback" not in result.output
    assert "All checks passed" not in command("check", "a.py", "--ignore", "ATN001").stdout
    assert "b.py:1:5" in result.stdout
    assert "ATN001" in result.stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[tool.attn-advisor]\nselct = []\n", "unknown key `selct`; did you mean `select`?"),
        ("[tool.attn-advisor]\nselect = 'ATN'\n", "`select` must be a list of strings"),
        ("[tool.attn-advisor]\nselect = ['ATN9999']\n", "Unknown rule selector `ATN9999`"),
        ("[tool.attn-advisor]\ntorch-version = 'new'\n", "is not a torch version"),
        ("[tool.attn-advisor\n", "Cannot read"),
    ],
)
def test_configuration_that_cannot_be_used(command, text, reason):
    result = command("check", ".", write={"pyproject.toml": text, "a.py": SLOW})
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "pyproject.toml" in result.stderr
    assert "Traceback" not in result.output
    assert command("check", "--isolated", ".").exit_code == 1


def test_config_option(command):
    files = {"other.toml": "ignore = ['TOY101']\n", "a.py": SLOW}
    assert command("check", "--config", "other.toml", "a.py", write=files).exit_code == 0
    assert command("check", "--config", "ignore = ['TOY101']", "a.py").exit_code == 0
    for wrong in ("absent.toml", "ignor = ['TOY101']", "other.toml --isolated"):
        assert (
            command(
                "check", "--config", *wrong.split(" --", 1)[:1], "a.py", *(["--isolated"] * ("--" in wrong))
            ).exit_code
            == 2
        )


def test_options_that_exclude_each_other(command):
    for args in (["-", "a.py"], ["-", "--watch"], ["--add-noqa", "--fix", "a.py"], ["--output-format", "yaml", "a.py"]):
        result = command("check", *args, stdin="")
        assert result.exit_code == 2, args
        assert "error: " in result.stderr


def test_target_torch_option(command):
    assert command("check", "--target-torch", "2.1", "a.py", write={"a.py": "x = 1\n"}).exit_code == 0
    assert command("check", "--target-torch", "two", "a.py").exit_code == 2


def test_jobs_give_the_same_report(command):
    files = {f"pkg/m{n}.py": SLOW if n % 3 else "def f(:\n" for n in range(50)}
    one = command("check", "-j", "1", "--output-format", "json", ".", write=files)
    two = command("check", "-j", "2", "--output-format", "json", ".")
    assert json.loads(one.stdout) == json.loads(two.stdout)
    assert len(json.loads(one.stdout)) == 50


def test_symbolic_link_stays_one(command, tmp_path):
    (tmp_path / "real.py").write_text(SLOW)
    os.symlink("real.py", tmp_path / "link.py")
    assert command("check", "--fix", "link.py").exit_code == 0
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "real.py").read_text() == FAST


def test_watch_checks_again_after_a_change(command, tmp_path, monkeypatch):
    sleeps = iter([lambda: (tmp_path / "a.py").write_text("x = 1\n"), lambda: None, lambda: None])

    def sleep(seconds):
        step = next(sleeps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(time, "sleep", sleep)
    result = command("check", "--watch", "--output-format", "concise", "a.py", write={"a.py": SLOW})
    assert result.exit_code == 0
    assert result.stdout.count("a.py:1:5: TOY101") == 1
    assert result.stdout.endswith("All checks passed!\n")


def test_verbose_says_what_was_done(command):
    result = command("check", "-v", ".", write={"a.py": SLOW, "b.py": "x = 1\n"})
    assert re.search(r"2 files, 1 analysed, \d+\.\d\d s", result.stderr)


def test_no_python_files(command):
    result = command("check", ".")
    assert result.exit_code == 0
    assert "No Python files found" in result.stderr
