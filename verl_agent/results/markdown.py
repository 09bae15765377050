"""Tables in Markdown, for the reports of evaluations."""

from collections.abc import Iterable, Sequence


def escaped(text: str) -> str:
    """Return text whose bars and asterisks are no Markdown."""
    return text.replace("|", "\\|").replace("*", "\\*")


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, and an empty line after it."""
    lines = (f"| {' | '.join(map(escaped, cells))} |" for cells in (heads, ["---"] * len(heads), *rows))
    return [*lines, ""]
