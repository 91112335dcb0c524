"""The command as people use it: JSON by the contract, exit statuses, --fix, reports."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
from click.testing import CliRunner

from attn_advisor.cli import cli
from attn_advisor.lab import advice, commands
from tests.lab.jobs import FIXTURES, SMALL
from tests.lab.test_advice import candidate
from tests.lab.test_advice import result as measured

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
KEYS = {
    "target", "file", "line", "function", "level", "device", "torch", "inputs", "mode", "candidates", "breakdown", "backend",
    "memory_forecast", "prescriptions",
}  # fmt: skip
CANDIDATE = {
    "name", "ok", "reason", "median_ms", "iqr_ms", "runs", "peak_bytes", "kernels", "backend", "max_abs_error", "max_grad_error", "speedup",
}  # fmt: skip


def run(*arguments: str):
    return CliRunner().invoke(cli, ["profile", "--device", "cpu", "--budget", "0.3", *arguments])


@needs_torch
def test_json_by_the_contract():
    result = run(str(FIXTURES / "tutorial.py"), "--shape", SMALL, "--mode", "both", "--output-format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [r["mode"] for r in found] == ["forward", "train"]
    for one in found:
        assert set(one) >= KEYS
        assert [c["name"] for c in one["candidates"]][:3] == ["as_written", "inplace", "sdpa"]
        assert all(set(c) == CANDIDATE for c in one["candidates"])
        by_name = {c["name"]: c for c in one["candidates"]}
        assert by_name["sdpa"]["ok"] and by_name["sdpa"]["backend"] == "flash"
        assert by_name["sdpa_cudnn"]["reason"] == "only on CUDA" and not by_name["sdpa_cudnn"]["ok"]
        assert {i["role"] for i in one["inputs"]} == {"query", "key", "value", "mask"}
        query = next(i for i in one["inputs"] if i["name"] == "q")
        assert query["shape"] == [2, 3, 32, 8] and query["requires_grad"] is (one["mode"] == "train")
        assert {b["line"] for b in one["breakdown"]} >= {15, 16, 17, 18, 19}
        assert sum(b["time_share"] for b in one["breakdown"]) == pytest.approx(1, abs=0.1)
        largest = one["memory_forecast"]["largest"]
        assert one["memory_forecast"]["free_bytes"] > 0 and set(largest) == {"as_written", "sdpa"}
        assert all(largest[name].keys() == {"S", "B"} and largest[name]["B"] >= 2 for name in largest)
        assert largest["sdpa"]["S"] > largest["as_written"]["S"] > 32
        assert any(b["bytes"] for b in one["breakdown"] if b["line"] == 15), "the product allocates the scores"
        assert (by_name["sdpa"]["max_grad_error"] is not None) is (one["mode"] == "train")


@needs_torch
def test_table_breakdown_and_verdict():
    result = run(f"{FIXTURES / 'tutorial.py'}:17", "--shape", SMALL)
    assert result.exit_code == 0, result.output
    for text in (
        "tutorial.py:15",
        "NaiveCausalAttention.forward",
        "as written",
        "SDPA",
        "speed-up",
        "masked_fill",
        "softmax",
        "verdict:",
    ):
        assert text in result.output


@needs_torch
def test_fix_applies_what_gained(tmp_path):
    path = tmp_path / "tutorial.py"
    for least, changed in (("1000", False), ("1.0", True)):
        shutil.copy(FIXTURES / "tutorial.py", path)
        before = path.read_text()
        result = run(str(path), "--shape", "B=2,H=4,S=512,D=32", "--min-speedup", least, "--fix")
        assert result.exit_code == 0, result.output
        if changed and "within the spread" in result.output:
            pytest.skip("this machine is too busy to measure")
        assert (path.read_text() != before) is changed
        assert ("applied" in result.output) and ("not applied" in result.output) is not changed
    assert "scaled_dot_product_attention" in path.read_text()


@needs_torch
def test_files_are_written(tmp_path):
    saved, page = tmp_path / "out.json", tmp_path / "out.html"
    result = run(
        str(FIXTURES / "tutorial.py"),
        "--shape",
        SMALL,
        "--save",
        str(saved),
        "--html",
        str(page),
        "--output-format",
        "json",
    )
    assert json.loads(saved.read_text()) == json.loads(result.stdout)
    assert "as written" in page.read_text()


def saved_run() -> list[dict]:
    """Results as `--save` writes them, of code that takes 10 ms and its rewrite that takes 1 ms."""
    rows = [candidate("as_written", 10.0), candidate("sdpa", 1.0, backend="flash")]
    rows[0]["speedup"], rows[1]["speedup"] = 1.0, 10.0
    found = measured(
        *rows, target="a.py:10", file="a.py", line=10, function="A.forward", mode="forward", device="cpu", notes=[]
    )
    found["prescriptions"] = advice.prescriptions(found, 1.1)
    return [found]


def test_a_saved_run_is_shown_again(tmp_path, monkeypatch):
    """Also where there is no torch."""
    hide_torch(monkeypatch)
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(saved_run()))
    shown = CliRunner().invoke(cli, ["profile", "--evidence", str(path)])
    assert shown.exit_code == 0, shown.output
    for text in ("a.py:10", "A.forward", "as written", "x10.00", "ATN901", "verdict: SDPA (flash) takes 1 ms"):
        assert text in shown.output
    again = CliRunner().invoke(cli, ["profile", "--evidence", str(path), "--output-format", "json"])
    assert json.loads(again.stdout) == saved_run()
    for wrong in ("{}}", "[1]", '{"a": 1}', '[{"file": 1}]'):
        path.write_text(wrong)
        result = CliRunner().invoke(cli, ["profile", "--evidence", str(path)])
        assert result.exit_code == 2 and "holds no saved profile" in result.output, result.output
    assert CliRunner().invoke(cli, ["profile", "--evidence", str(path), "a.py"]).exit_code == 2


def test_the_price_of_the_time_saved(tmp_path):
    """9 ms a call are 2.5 hours in a million calls."""
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(saved_run()))
    arguments = ["profile", "--evidence", str(path), "--gpu-hour-price", "4"]
    found = json.loads(CliRunner().invoke(cli, [*arguments, "--output-format", "json"]).stdout)
    (advised,) = found[0]["prescriptions"]
    assert advised["hours_per_million_calls"] == pytest.approx(2.5)
    assert advised["price_per_million_calls"] == pytest.approx(10)
    shown = " ".join(CliRunner().invoke(cli, arguments).output.split())
    assert "per million calls 2.5 device hours, worth 10.00" in shown


@needs_torch
def test_what_is_saved_can_be_shown(tmp_path):
    saved = tmp_path / "out.json"
    result = run(str(FIXTURES / "tutorial.py"), "--shape", SMALL, "--save", str(saved))
    shown = CliRunner().invoke(cli, ["profile", "--evidence", str(saved)])
    assert shown.exit_code == 0 and shown.output == result.output


def test_nothing_measured_is_status_2(tmp_path):
    clean = tmp_path / "clean.py"
    clean.write_text("x = 1\n")
    for arguments, message in (
        ([str(clean)], "no hand-written attention was found"),
        ([str(tmp_path / "missing.py")], "no such file"),
        ([f"{FIXTURES / 'tutorial.py'}::NoSuchClass"], "no hand-written attention was found"),
        ([str(FIXTURES / "tutorial.py"), "--shape", "Q=3"], "expected B, H, L, S or D"),
        ([str(FIXTURES / "tutorial.py"), "--candidates", "sdpa,magic"], "'magic' is none of"),
        ([str(FIXTURES / "tutorial.py"), "--device", "foo"], "'foo' is none of auto, cuda"),
        ([str(FIXTURES / "tutorial.py"), "--save", str(tmp_path / "no" / "out.json")], "does not exist"),
        ([str(FIXTURES / "tutorial.py"), "--html", str(tmp_path / "no" / "out.html")], "does not exist"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and message in result.output, result.output


def hide_torch(monkeypatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        commands.importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest)
    )


def test_without_torch(monkeypatch):
    hide_torch(monkeypatch)
    result = run(str(FIXTURES / "tutorial.py"))
    assert result.exit_code == 2 and "torch is not installed" in result.output
    doctor = CliRunner().invoke(cli, ["doctor", "--output-format", "json"])
    assert doctor.exit_code == 2
    assert next(r for r in json.loads(doctor.stdout) if r["part"] == "torch")["ok"] is False


@needs_torch
def test_doctor_and_backends():
    doctor = CliRunner().invoke(cli, ["doctor", "--output-format", "json"])
    assert doctor.exit_code == 0
    parts = {r["part"]: r for r in json.loads(doctor.stdout)}
    assert parts["torch"]["ok"] and "flash-attn" in parts["FlashAttention 2"]["cost"]
    shown = CliRunner().invoke(cli, ["doctor"], env={"COLUMNS": "200"}).stdout
    missing = [part["cost"] for part in parts.values() if not part["ok"]]
    assert all(cost in " ".join(shown.split()) for cost in missing if len(cost) < 80)  # brackets included
    here = CliRunner().invoke(cli, ["backends", "--device", "cpu", "--dtype", "float32", "--output-format", "json"])
    assert json.loads(here.stdout)[0]["chosen"] == "flash"


def test_backends_from_the_table():
    result = CliRunner().invoke(
        cli, ["backends", "--gpu", "H200", "--gpu", "t4", "--mask", "bool", "--output-format", "json"]
    )
    h200, t4 = json.loads(result.stdout)
    assert (h200["chosen"], h200["rejected"]) == ("cudnn", {"flash": "takes no mask tensor"})
    assert t4["chosen"] == "math"
    shown = CliRunner().invoke(cli, ["backends", "--gpu", "H200", "--gpu", "A100"]).output
    assert shown.count("H200") == shown.count("A100") == 1 and "every backend can serve this call" in shown
    assert CliRunner().invoke(cli, ["backends", "--gpu", "H9000"]).exit_code == 2
