"""From a file to its findings, for one file or many.

A byte search comes first: a file that holds none of the strings a detector looks for is only checked for syntax.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import itertools
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from attn_advisor import files
from attn_advisor.findings import Detection, Finding, Fix
from attn_advisor.fixes.apply import Fixed, until_stable, wanted
from attn_advisor.rules.page import finding as make_finding
from attn_advisor.rules.registry import detector, registry
from attn_advisor.rules.selection import UNREADABLE, UNUSED_SUPPRESSION
from attn_advisor.settings import Resolver, Settings
from attn_advisor.source import noqa
from attn_advisor.source.project import Project
from attn_advisor.source.text import SourceText

Mode = Literal["check", "fix", "diff"]
POOL_FILES = 40  # below this many files, starting processes costs more than it gains
CHUNK_FILES = 12
COLLECT_AT = 1_500_000  # objects that are left over before the garbage collector runs
# A file that imports one of these and never says "torch" computes with arrays of theirs.
_OTHER_FRAMEWORK = re.compile(rb"\n[ \t]*(?:import|from)[ \t]+(?:tensorflow|jax|flax|paddle|mindspore|mxnet)\b")
_TORCH = re.compile(rb"\btorch\b")
_NEVER = "attn_advisor"
NOT_PARSED = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass
class FileResult:
    """What came of one file. `text` is there if something is said about the file; `fixed_text` if fixes changed it.

    `errors` are faults of the tool or of writing, not of the file's code.
    """

    path: str
    findings: list[Finding] = field(default_factory=list)
    text: str | None = None
    fixed: list[Finding] = field(default_factory=list)
    fixed_text: str | None = None
    errors: list[str] = field(default_factory=list)
    analysed: bool = False
    consulted: tuple[str, ...] = ()  # module stems (paths without suffix) that names were looked up in


def check_text(text: str, path: str = "<string>", settings: Settings | None = None) -> list[Finding]:
    """Findings in a text, by position. `path` tells where its imports start from; the file need not exist."""
    return Checker(path, settings or default_settings(path)).check(text)


def fix_text(
    text: str, path: str = "<string>", settings: Settings | None = None, unsafe: bool = False
) -> tuple[str, list[Finding], list[Finding]]:
    """(new text, findings that were fixed, findings that remain), after as many passes as it takes."""
    result = Checker(path, settings or default_settings(path)).fix(text, unsafe)
    return result.text, result.fixed, result.remaining


def default_settings(path: str) -> Settings:
    return Resolver().for_folder(Path(path).resolve().parent)


@cache
def project_for(folder: str) -> Project:
    return _project_at(Project.find_root(Path(folder, "module.py")))


@cache
def _project_at(root: Path) -> Project:
    return Project(root)


def forget_projects() -> None:
    """Files have changed: what was read of them before no longer counts."""
    project_for.cache_clear()
    _project_at.cache_clear()


class Checker:
    """Checks one file. With `errors` given, a detector that fails is noted there and the others go on."""

    def __init__(self, path: str, settings: Settings, errors: list[str] | None = None, search: bool = True) -> None:
        self.path = path
        self.settings = settings
        self.errors = errors
        self.search = search
        self.codes = settings.codes_for(path)
        self.detectors = detectors_for(self.codes)
        self.analysed = False
        self.consulted: list[str] = []

    def check(self, text: str, data: bytes | None = None) -> list[Finding]:
        """Findings in the text, sorted, without those that comments silence. `data`: the same as bytes, if at hand."""
        source = SourceText(text, self.path)
        due = self._due(text.encode("utf-8", "replace") if data is None else data)
        try:
            detections = self._detect(source, due) if due else check_syntax(text)
        except NOT_PARSED as error:
            return [unreadable(source, error)] if UNREADABLE in self.codes else []
        rules = registry().rules
        if "\r" in text:
            for detection in detections:
                detection.fix = with_own_newlines(detection.fix, source)
        findings = [make_finding(rules[d.code], d) for d in detections if d.code in self.codes]
        findings = self._silence(source, findings)
        findings.sort(key=lambda found: (found.start, found.end, found.code))
        if self.settings.verify and any(found.fix for found in findings):
            self._verify(text, findings)
        return findings

    def _verify(self, text: str, findings: list[Finding]) -> None:
        """Drop the fixes whose code, when run, computes something else than the original."""
        from attn_advisor.fixes.verify import verify

        for number, (verdict, reason) in verify(self.path, text, findings).items():
            found = findings[number]
            if verdict == "differs":
                found.fix = None
                found.blockers.append(f"the fix was dropped: run against the original it differs ({reason})")
            elif verdict == "could not run":
                found.assumes.append(f"the fix could not be run against the original: {reason}")

    def fix(self, text: str, unsafe: bool) -> Fixed:
        return until_stable(text, self.check, unsafe)

    def _due(self, data: bytes) -> list[str]:
        """Detectors that can find something in these bytes."""
        if not self.search:
            return list(self.detectors)
        due = [name for name, search in self.detectors.items() if any(text in data for text in search)]
        return [] if due and _OTHER_FRAMEWORK.search(data) and not _TORCH.search(data) else due

    def _detect(self, source: SourceText, due: Sequence[str]) -> list[Detection]:
        from attn_advisor.dataflow.values import release
        from attn_advisor.source.module import Module

        self.analysed = True
        project = project_for(os.path.dirname(self.path))
        known = len(project.consulted)
        module = Module(source, project, self.settings.target_torch)
        module.tree  # noqa: B018 - a file that cannot be parsed says so here
        detections: list[Detection] = []
        for name in due:
            try:
                detections += detector(name)(module)
            except Exception as error:
                if self.errors is None:
                    raise
                self.errors.append(describe(error, name))
        self.consulted += map(str, itertools.islice(project.consulted, known, None))
        release(module)
        return detections

    def _silence(self, source: SourceText, findings: list[Finding]) -> list[Finding]:
        if self.settings.ignore_noqa or not noqa.may_matter(source.text, bool(findings)):
            return findings
        comments = noqa.directives(source)
        findings = noqa.silence(findings, comments, source)
        rules = registry().rules
        if UNUSED_SUPPRESSION in self.codes:
            unused = noqa.unused(comments, source, UNUSED_SUPPRESSION, self._judged)
            idle = [make_finding(rules[UNUSED_SUPPRESSION], detection) for detection in unused]
            named = [comment for comment in comments if UNUSED_SUPPRESSION in comment.codes]
            findings += noqa.silence(idle, named, source)
        return findings

    def _judged(self, code: str) -> bool:
        """Whether a comment that names this code and silences nothing is idle: the rule is on, or there is no such rule."""
        rules = registry().rules
        if code in rules:
            return code in self.codes and rules[code].stage == "static"
        return code.startswith("ATN")


def with_own_newlines(fix: Fix | None, source: SourceText) -> Fix | None:
    """The fix with the line endings of the rows it changes."""
    if fix is None:
        return None
    edits = []
    for edit in fix.edits:
        line = source.line(source.position(edit.start)[0])
        ending = line[len(line.rstrip("\r\n")) :] or "\n"
        edits.append(replace(edit, content=edit.content.replace("\r\n", "\n").replace("\n", ending)))
    return replace(fix, edits=tuple(edits))


@cache
def detectors_for(codes: frozenset[str]) -> dict[str, tuple[bytes, ...]]:
    return registry().detectors(sorted(codes))


def check_syntax(text: str) -> list[Detection]:
    """Raises what `ast.parse` raises. Cheaper than it where the text is right: no tree is made of Python objects.

    An unknown feature of the future stops the compiler right behind its parser.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(f"from __future__ import {_NEVER}\n{text}", "<file>", "exec", dont_inherit=True)
        except NOT_PARSED as error:
            if not (isinstance(error, SyntaxError) and error.msg.startswith(f"future feature {_NEVER} ")):
                ast.parse(text)
    return []


def unreadable(source: SourceText, error: BaseException) -> Finding:
    """The finding ATN000 for a text that cannot be read or parsed."""
    start = 0
    if isinstance(error, files.ReadError):
        reason, row, column = error.reason, error.row, 1
    elif isinstance(error, SyntaxError):
        reason, row, column = error.msg or "invalid syntax", error.lineno or 1, error.offset or 1
        reason = f"syntax error: {reason}"
    else:
        reason, row, column = f"too deeply nested to parse ({type(error).__name__})", 1, 1
        if isinstance(error, ValueError):
            reason = str(error)
    starts = source.line_starts
    if source.text:
        start = min(starts[min(row, len(starts)) - 1] + max(column - 1, 0), len(source.text))
    detection = Detection(UNREADABLE, start, min(start + 1, len(source.text)), facts={"reason": reason, "row": row})
    detection.values = {"reason": reason}
    return make_finding(registry().rules[UNREADABLE], detection)


def describe(error: BaseException, where: str) -> str:
    """An internal error in one line, with the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"internal error in {where}: {type(error).__name__}: {error}{place}"


def check_file(path: str, settings: Settings, mode: Mode = "check") -> FileResult:
    """Read, check and, in mode `fix`, rewrite one file. Nothing that is wrong with it raises."""
    try:
        data = files.read_bytes(path)
    except files.ReadError as error:
        return _unread(path, settings, error)
    result = check_data(path, data, settings, mode)
    if mode == "fix" and result.fixed_text is not None:
        _write(result, settings, files.decode(data))
    return result


def check_data(path: str, data: bytes, settings: Settings, mode: Mode = "check") -> FileResult:
    """Check a file's bytes. In the modes `fix` and `diff` the result has the fixed text; nothing is written."""
    result = FileResult(path)
    checker = Checker(path, settings, result.errors)
    try:
        content = files.decode(data)
        if mode == "check":
            result.findings = checker.check(content.text, data)
        else:
            done = checker.fix(content.text, settings.unsafe_fixes)
            result.findings, result.fixed = done.remaining, done.fixed
            result.errors += [done.error] if done.error else []
            result.fixed_text = done.text if done.text != content.text else None
    except files.ReadError as error:
        return _unread(path, settings, error)
    except Exception as error:
        result.errors.append(describe(error, "the pipeline"))
    result.errors = list(dict.fromkeys(result.errors))  # each pass of fixing meets the same one
    result.analysed, result.consulted = checker.analysed, tuple(checker.consulted)
    if result.findings or result.fixed:
        result.text = result.fixed_text if mode == "fix" and result.fixed_text is not None else content.text
    return result


def _unread(path: str, settings: Settings, error: files.ReadError) -> FileResult:
    result = FileResult(path, text=error.text)
    if UNREADABLE in settings.codes_for(path):
        result.findings = [unreadable(SourceText(error.text, path), error)]
    return result


def _write(result: FileResult, settings: Settings, before: files.Content) -> None:
    """Put the fixed text in the file's place; where that fails, the findings are those of the file as it is."""
    try:
        files.write(result.path, result.fixed_text or "", before)
    except files.WriteError as error:
        unfixed = check_data(result.path, before.data, settings)
        result.findings, result.text = unfixed.findings, unfixed.text
        result.fixed, result.fixed_text = [], None
        result.errors.append(f"not fixed: the file {error}")


Job = tuple[str, Settings]


def run(jobs: Sequence[Job], mode: Mode = "check", workers: int = 0, cached: bool = False) -> Iterator[FileResult]:
    """Results of many files, in order. `workers` 0 means as many as there are processors."""
    workers = workers or processors()
    with lean_memory():
        if cached:
            yield from _cached(jobs, mode, workers)
        else:
            yield from _fresh(jobs, mode, workers)


def _fresh(jobs: Sequence[Job], mode: Mode, workers: int) -> Iterator[FileResult]:
    return _serial(jobs, mode) if workers == 1 or len(jobs) < POOL_FILES else _parallel(jobs, mode, workers)


def _cached(jobs: Sequence[Job], mode: Mode, workers: int) -> Iterator[FileResult]:
    """Files whose findings are known are not checked again, unless they hold something to fix."""
    from attn_advisor.cache import caches

    stores = caches(settings for _, settings in jobs)
    known: dict[str, FileResult] = {}
    read: dict[str, bytes] = {}
    for path, settings in jobs:
        with contextlib.suppress(files.ReadError):
            data = files.read_bytes(path)
            findings = stores[id(settings)].get(path, data)
            if findings is None:
                read[path] = data
            elif mode == "check" or not any(wanted(found, settings.unsafe_fixes) for found in findings):
                known[path] = FileResult(path, findings, _text(data) if findings else None)
    todo = [job for job in jobs if job[0] not in known]
    fresh = _fresh(todo, mode, workers)
    for path, settings in jobs:
        result = known.get(path) or next(fresh)
        if path in read:
            stores[id(settings)].put(result, read[path])
        yield result
    for store in stores.values():
        store.save()


def _text(data: bytes) -> str:
    try:
        return files.decode(data).text
    except files.ReadError as error:
        return error.text


def processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def lean_memory() -> Iterator[None]:
    """The automatic garbage collector off: it would walk every syntax tree again and again. `_serial` calls it instead.

    What is there at the end is left out of later collections too: mostly the project's modules, which live as long as the process.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _serial(jobs: Sequence[Job], mode: Mode) -> Iterator[FileResult]:
    for path, settings in jobs:
        result = check_file(path, settings, mode)
        if gc.get_count()[0] > COLLECT_AT:
            gc.collect()
            gc.freeze()  # what survived (modules of the project) is not looked at again
        yield result


def _worker(jobs: Sequence[Job], mode: Mode) -> list[FileResult]:
    gc.disable()
    return list(_serial(jobs, mode))


def _parallel(jobs: Sequence[Job], mode: Mode, workers: int) -> Iterator[FileResult]:
    """In processes. Where one dies, its files are tried again alone, so that only the one that kills it is lost."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    chunks = [jobs[at : at + CHUNK_FILES] for at in range(0, len(jobs), CHUNK_FILES)]
    with ProcessPoolExecutor(min(workers, len(chunks))) as pool:
        futures = [pool.submit(_worker, chunk, mode) for chunk in chunks]
        for chunk, future in zip(chunks, futures, strict=True):
            try:
                results = future.result()
            except BrokenProcessPool:
                results = _alone(chunk, mode)
            yield from results


def _alone(jobs: Sequence[Job], mode: Mode) -> list[FileResult]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    try:
        with ProcessPoolExecutor(1) as pool:
            return pool.submit(_worker, jobs, mode).result()
    except BrokenProcessPool:
        if len(jobs) > 1:
            return [result for job in jobs for result in _alone([job], mode)]
        died = "the process that checked it died (out of memory, or nested too deeply)"
        return [FileResult(jobs[0][0], errors=[died])]
