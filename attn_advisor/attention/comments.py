"""Comments inside a piece of source, read from its concrete syntax tree."""

from __future__ import annotations

import textwrap


def comments_in(source: str) -> list[str]:
    """The comments of a whole statement or expression, in order.

    >>> comments_in("x = f(a,  # first\\n      b)  # second\\n")
    ['# first', '# second']
    """
    if "#" not in source:
        return []
    import libcst

    found: list[str] = []

    class Comments(libcst.CSTVisitor):
        def visit_Comment(self, node: libcst.Comment) -> None:
            found.append(node.value)

    text = textwrap.dedent(source)
    for candidate in (text, f"({text}\n)\n"):
        try:
            libcst.parse_module(candidate).visit(Comments())
            return found
        except libcst.ParserSyntaxError:
            found.clear()
    return found
