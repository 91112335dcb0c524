"""Files: discovery, decoding, writing."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from attn_advisor import files
from attn_advisor.settings import Overrides, Resolver


def tree(folder: Path, *names: str, **texts: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    for name, text in texts.items():
        (folder / name).write_text(text)


def found(folder: Path, *paths: str, **overrides) -> list[str]:
    resolver = Resolver(Overrides(**overrides), folder)
    return [os.path.relpath(path, folder) for path, _ in files.discover(paths or (".",), resolver)]


def test_python_files_in_order_without_the_default_excludes(tmp_path):
    tree(
        tmp_path, "b.py", "a/z.py", "a/b/c.py", "notes.txt", "stub.pyi", ".venv/x.py", "node_modules/y.py", "dist/z.py"
    )
    assert found(tmp_path) == ["b.py", "a/z.py", "a/b/c.py"]


def test_exclude_and_extend_exclude(tmp_path):
    tree(tmp_path, "a/x.py", "b/x.py", "venv/x.py", "a/test_y.py")
    assert found(tmp_path, exclude=("b",)) == ["a/test_y.py", "a/x.py", "venv/x.py"]
    assert found(tmp_path, extend_exclude=("test_*.py", "b/*")) == ["a/x.py"]


def test_a_path_given_by_name_is_checked_unless_force_exclude(tmp_path):
    tree(tmp_path, "venv/x.py", "script")
    assert found(tmp_path, "venv/x.py", "script") == ["venv/x.py", "script"]
    assert found(tmp_path, "venv/x.py", "script", values={"force_exclude": True}) == ["script"]


def test_no_file_twice(tmp_path):
    tree(tmp_path, "a/x.py")
    os.symlink("a/x.py", tmp_path / "link.py")
    os.symlink(".", tmp_path / "a" / "loop")
    assert found(tmp_path, "a/x.py", "a", ".") == ["a/x.py"]


def test_missing_path_is_passed_on(tmp_path):
    assert found(tmp_path, "absent.py") == ["absent.py"]


def test_gitignore(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    tree(tmp_path, "a.py", "out/b.py", "pkg/gen_x.py", "pkg/gen_keep.py", "pkg/deep/gen_y.py", "pkg/c.py")
    (tmp_path / ".gitignore").write_text("out/\ngen_*.py\n")
    (tmp_path / "pkg" / ".gitignore").write_text("!gen_keep.py\n/c.py\n")
    assert found(tmp_path) == ["a.py", "pkg/gen_keep.py"]
    assert found(tmp_path, "pkg") == ["pkg/gen_keep.py"]
    assert "out/b.py" in found(tmp_path, values={"respect_gitignore": False})


def test_configuration_of_a_folder_governs_its_files(tmp_path):
    tree(tmp_path, "a.py", "sub/b.py", "sub/skip.py")
    (tmp_path / "sub" / "attn-advisor.toml").write_text('extend-exclude = ["skip.py"]\n')
    assert found(tmp_path) == ["a.py", "sub/b.py"]


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"x = '\xc3\xa9'\r\n", "x = 'é'\r\n", "utf-8"),
        (b"\xef\xbb\xbfx\n", "x\n", "utf-8-sig"),
        (b"# -*- coding: latin-1 -*-\ny = '\xe9'\n", "# -*- coding: latin-1 -*-\ny = 'é'\n", "latin-1"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\n'\x80'", "#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\n'€'", "cp1252"),
        (b"x = 1\n# coding: latin-1\n", "x = 1\n# coding: latin-1\n", "utf-8"),
        (b"x = 1  # coding: latin-1\n", "x = 1  # coding: latin-1\n", "utf-8"),
        (b"", "", "utf-8"),
    ],
)  # fmt: skip
def test_decode_and_encode(data, text, encoding):
    content = files.decode(data)
    assert (content.text, content.encoding) == (text, encoding)
    assert files.encode(text, encoding) == data


def test_write_keeps_mode_link_and_encoding(tmp_path):
    real = tmp_path / "real.py"
    real.write_bytes(b"# coding: latin-1\nx = '\xe9'\r\n")
    real.chmod(0o640)
    link = tmp_path / "link.py"
    link.symlink_to("real.py")
    before = files.read(link)
    files.write(link, before.text.replace("x", "long_name"), before)
    assert link.is_symlink()
    assert real.read_bytes() == b"# coding: latin-1\nlong_name = '\xe9'\r\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.py", "real.py"]


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    before = files.read(path)
    path.write_text("x = 2\n")
    with pytest.raises(files.WriteError, match="changed on disk"):
        files.write(path, "x = 3\n", before)
    assert path.read_text() == "x = 2\n"
    assert os.listdir(tmp_path) == ["a.py"]


def test_text_that_the_encoding_lacks_is_not_written(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(b"# coding: latin-1\n")
    with pytest.raises(files.WriteError, match="latin-1"):
        files.write(path, "# coding: latin-1\n# €\n", files.read(path))
    assert path.read_bytes() == b"# coding: latin-1\n"


def test_nothing_is_left_behind_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    before = files.read(path)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(files.WriteError, match="No space left"):
        files.write(path, "x = 2\n", before)
    assert path.read_text() == "x = 1\n"
    assert os.listdir(tmp_path) == ["a.py"]
