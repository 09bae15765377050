"""Tables in Markdown, for the reports of evaluations."""

import re
from collections.abc import Iterable, Sequence

_ACTIVE = re.compile(r"[|*`<]|(?<![^\W_])_|_(?![^\W_])|~(?=~)|(?<=\])[(\[:]|&(?=#?\w+;)|\\(?=[!-/:-@\[-`{-~])")
"""Characters that begin code, HTML, emphasis, the address of a link, an entity, an escape, or a cell."""


def escaped(text: str) -> str:
    """Return text on one line that Markdown shows as it is, such as a task's name or an action."""
    return _ACTIVE.sub(lambda found: f"\\{found[0]}", " ".join(text.splitlines()))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, and an empty line after it."""
    head, *body = (f"| {' | '.join(map(escaped, cells))} |" for cells in (heads, *rows))
    return [head, f"|{' --- |' * len(heads)}", *body, ""]
