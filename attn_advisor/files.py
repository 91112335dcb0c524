"""Files: which to check, their text, and writing them so that nothing can be lost."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attn_advisor.settings import Resolver, Settings, matches

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SUFFIX = ".py"
COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
BLANK = re.compile(rb"^[ \t\f]*(?:[#\r\n]|$)")


class ReadError(Exception):
    """A file that cannot be read as Python text; `row` is where, `text` what could be made out, when that is known."""

    def __init__(self, reason: str, row: int = 1, text: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row
        self.text = text


class WriteError(Exception):
    """A file that was not written; it is as it was."""


@dataclass(frozen=True)
class Content:
    """A file's bytes and how they become text. The byte order mark is not part of the text; line endings are kept."""

    data: bytes
    text: str
    encoding: str


def decode(data: bytes) -> Content:
    """Bytes of a Python file as text, by byte order mark or PEP 263 cookie, else UTF-8. Raises ReadError."""
    encoding, body = "utf-8", data
    if data.startswith(codecs.BOM_UTF8):
        encoding, body = "utf-8-sig", data[len(codecs.BOM_UTF8) :]
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ReadError("it is UTF-16, which Python does not read; save it as UTF-8")
    else:
        encoding = _cookie(data) or encoding
    try:
        text = codecs.decode(body, "utf-8" if encoding == "utf-8-sig" else encoding)
    except UnicodeDecodeError as error:
        row = body.count(b"\n", 0, error.start) + 1
        reason = f"not valid {error.encoding}: byte 0x{body[error.start]:02x} in line {row}"
        raise ReadError(reason, row, codecs.decode(body, error.encoding, "replace")) from error
    except (LookupError, ValueError) as error:
        raise ReadError(f"it declares the encoding {encoding!r}, which cannot be used: {error}") from error
    if not isinstance(text, str):
        raise ReadError(f"it declares {encoding!r}, which is no text encoding")
    if "\0" in text:
        row = text.count("\n", 0, text.index("\0")) + 1
        raise ReadError(f"a binary file, with a null byte in line {row}", row)
    return Content(data, text, encoding)


def _cookie(data: bytes) -> str | None:
    """The encoding declared in the first two lines; the second counts only if the first is blank or a comment."""
    if b"coding" not in data[:400]:
        return None
    for line in data.split(b"\n", 2)[:2]:
        if found := COOKIE.match(line):
            return found[1].decode("ascii", "replace")
        if not BLANK.match(line):
            return None
    return None


def read(path: str | Path) -> Content:
    """A file's text. Raises ReadError."""
    return decode(read_bytes(path))


def read_bytes(path: str | Path) -> bytes:
    """A file's bytes. Raises ReadError."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError as error:
        raise ReadError(error.strerror or str(error)) from error


def encode(text: str, encoding: str) -> bytes:
    """The bytes of a text in a file's own encoding. Raises WriteError."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise WriteError(f"the new text cannot be written in {encoding}: {error}") from error


def write(path: str | Path, text: str, before: Content) -> None:
    """Put a new text in a file's place in one step. Raises WriteError, leaving the file as it was.

    The new file has the old one's encoding, mode and owner; a symbolic link stays one, its target is written.
    A file whose bytes are no longer `before.data` is not touched.
    """
    target = os.path.realpath(path)
    data = encode(text, before.encoding)
    temporary = ""
    try:
        status = os.stat(target)
        if not os.access(target, os.W_OK) or not status.st_mode & stat.S_IWUSR:
            raise WriteError("is read-only")
        handle, temporary = tempfile.mkstemp(prefix=".attn-advisor-", dir=os.path.dirname(target))
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, stat.S_IMODE(status.st_mode))
        if hasattr(os, "chown") and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            with contextlib.suppress(PermissionError):  # only root may give a file away
                os.chown(temporary, status.st_uid, status.st_gid)
        if read_bytes(target) != before.data:
            raise WriteError("changed on disk meanwhile")
        os.replace(temporary, target)
        temporary = ""
    except OSError as error:
        raise WriteError(error.strerror or str(error)) from error
    except ReadError as error:
        raise WriteError(error.reason) from error
    finally:
        if temporary:
            os.unlink(temporary)


def discover(paths: Sequence[str], resolver: Resolver) -> Iterator[tuple[str, Settings]]:
    """(absolute path, settings) of each Python file below `paths`, each file once, in order.

    A path given by name is checked even if it is excluded or has another suffix, unless force-exclude is set.
    One that does not exist is yielded too: reading it says so.
    """
    seen: set[str] = set()
    for given in paths:
        start = os.path.normpath(os.path.join(resolver.cwd, given))
        folder = start if os.path.isdir(start) else os.path.dirname(start)
        settings = resolver.for_folder(Path(folder))
        if settings.force_exclude and _excluded_above(start, settings):
            continue
        found = _walk(start, settings, resolver) if folder == start else iter([(start, settings)])
        for path, its in found:
            real = os.path.realpath(path) if os.path.islink(path) else path
            if real not in seen:
                seen.add(real)
                yield path, its


def _excluded_above(path: str, settings: Settings) -> bool:
    """Whether a path, or a folder above it inside the settings' root, is excluded."""
    while len(path) > len(str(settings.root)):
        if any(matches(path, pattern, settings.root) for pattern in settings.exclude):
            return True
        path = os.path.dirname(path)
    return False


class Excluder:
    """The exclude patterns of one Settings, compiled: patterns are asked for every entry of every folder."""

    def __init__(self, settings: Settings) -> None:
        import fnmatch

        self.names = {pattern for pattern in settings.exclude if not set(pattern) & set("*?[/")}
        others = [pattern for pattern in settings.exclude if pattern not in self.names]
        absolute = [os.path.normpath(os.path.join(settings.root, pattern)) for pattern in settings.exclude]
        self.by_name = re.compile("|".join(map(fnmatch.translate, others)) or r"(?!)")
        self.by_path = re.compile("|".join(map(fnmatch.translate, absolute)) or r"(?!)")

    def __call__(self, name: str, path: str) -> bool:
        return name in self.names or bool(self.by_name.match(name)) or bool(self.by_path.match(path))


def _walk(start: str, settings: Settings, resolver: Resolver) -> Iterator[tuple[str, Settings]]:
    """Files below a folder, sorted, without the excluded and the git-ignored. Links to folders are not followed."""
    excluders: dict[int, Excluder] = {}
    ignores = _ignores_above(start) if settings.respect_gitignore else []
    stack = [(start, ignores)]
    while stack:
        folder, ignores = stack.pop()
        settings = resolver.for_folder(Path(folder))
        if id(settings) not in excluders:
            excluders[id(settings)] = Excluder(settings)
        excluded = excluders[id(settings)]
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            continue  # a folder that may not be listed holds nothing that could be checked
        if settings.respect_gitignore and any(entry.name == ".gitignore" for entry in entries):
            ignores = [*ignores, *_gitignore(folder, ".gitignore")]
        below = []
        for entry in entries:
            name, path = entry.name, entry.path
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not name.endswith(SUFFIX):
                continue
            if excluded(name, path) or (ignores and _ignored(path, is_folder, ignores)):
                continue
            if is_folder:
                below.append((path, ignores))
            elif entry.is_file():
                yield path, settings
        stack.extend(reversed(below))


def _gitignore(folder: str, name: str) -> list[tuple[str, GitIgnoreSpec]]:
    """The patterns of an ignore file, with the folder they are relative to."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    from pathspec import GitIgnoreSpec

    return [(folder, GitIgnoreSpec.from_lines(lines))]


def _ignores_above(start: str) -> list[tuple[str, GitIgnoreSpec]]:
    """Ignore files from the top of the git repository down to the folder above `start`; none outside a repository."""
    above = [start, *map(str, Path(start).parents)]
    top = next((number for number, folder in enumerate(above) if os.path.exists(os.path.join(folder, ".git"))), None)
    if top is None:
        return []
    found = _gitignore(above[top], os.path.join(".git", "info", "exclude"))
    for folder in reversed(above[1 : top + 1]):
        found += _gitignore(folder, ".gitignore")
    return found


def _ignored(path: str, is_folder: bool, ignores: Iterable[tuple[str, GitIgnoreSpec]]) -> bool:
    """Git's answer for a path: the last file whose patterns speak about it decides."""
    ignored = False
    for folder, spec in ignores:
        relative = os.path.relpath(path, folder).replace(os.sep, "/") + ("/" if is_folder else "")
        said = spec.check_file(relative).include
        if said is not None:
            ignored = said
    return ignored
