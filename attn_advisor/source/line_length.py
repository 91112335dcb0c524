"""The line length of a project's formatter."""

from __future__ import annotations

from attn_advisor.source.module import Module


def line_length(module: Module) -> int:
    """The project's formatter's line length, 88 if it has none."""
    cached = module.project.__dict__.get("_line_length")
    if cached is None:
        cached = _configured(module)
        module.project.__dict__["_line_length"] = cached
    return cached


def _configured(module: Module) -> int:
    import sys

    if module.project.root is None:
        return 88
    path = module.project.root / "pyproject.toml"
    try:
        text = path.read_bytes()
    except OSError:
        return 88
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tool = tomllib.loads(text.decode()).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return 88
    for section in (tool.get("ruff", {}), tool.get("black", {})):
        length = section.get("line-length")
        if isinstance(length, int):
            return length
    return 88
