"""Files of a report: JSON, Markdown with its tables, and plots."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_agent.trace.provenance import write_result
from verl_agent.visible import make_visible

_ACTIVE = re.compile(r"[|*`<]|(?<![^\W_])_|_(?![^\W_])|~(?=~)|(?<=\])[(\[:]|&(?=#?\w+;)|\\(?=[!-/:-@\[-`{-~])")
"""Characters that begin code, HTML, emphasis, the address of a link, an entity, an escape, or a cell."""


def escaped(text: str) -> str:
    """Return text on one line that Markdown shows as it is, such as a task's name or an action."""
    return _ACTIVE.sub(lambda found: f"\\{found[0]}", " ".join(text.splitlines()))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, and an empty line after it."""
    head, *body = (f"| {' | '.join(map(escaped, cells))} |" for cells in (heads, *rows))
    return [head, f"|{' --- |' * len(heads)}", *body, ""]


def write_report(
    folder: Path, name: str, version: int, facts: Mapping[str, Any], markdown: str = "", figure: Any = None
) -> list[Path]:
    """Write `NAME.json`, and `NAME.md` and `NAME.png` where there is something to write, and return their paths.

    Args:
        version: version of the JSON.
        markdown: text whose control characters and halves of surrogate pairs are written as visible ones.
        figure: a `matplotlib` figure; None for no plot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [write_result(folder / f"{name}.json", version, facts)]
    if markdown:
        paths.append(folder / f"{name}.md")
        paths[-1].write_text(make_visible(markdown), encoding="utf-8")
    if figure is not None:
        from verl_agent.trace.curves import save_figure  # imports matplotlib

        paths.append(folder / f"{name}.png")
        save_figure(figure, paths[-1])
    return paths
