"""Show the results of an evaluation as tables, and keep them as JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from verl_agent.evaluation.results import ALL, CategoryResult, Comparison

REPORT_VERSION = 1
"""Raised when a field of the JSON changes its meaning or goes."""


def results_table(results: Sequence[CategoryResult], title: str) -> Table:
    """One row a category; the interval of each success rate is the 95 % one."""
    most = max((k for result in results for k in result.pass_at), default=1)
    columns: dict[str, Callable[[CategoryResult], str]] = {
        "items": lambda result: str(result.items),
        "played": lambda result: str(result.episodes),
        "success [95 %]": lambda result: str(result.success or "-"),
        f"pass@{most}": lambda result: _number(result.pass_at.get(most), "{:.3f}"),
        "turns": lambda result: _number(result.turns_mean, "{:.1f}"),
        "invalid": lambda result: _number(result.invalid_share, "{:.1%}"),
        "faults": lambda result: str(result.faults),
    }
    columns.pop("pass@1", None)
    if not any(result.faults for result in results):
        del columns["faults"]
    table = _table(title, "tasks", *columns)
    table.caption = _endings(results)
    for place, result in enumerate(results, start=1):
        cells = (escape(read(result)) for read in columns.values())
        table.add_row(escape(result.category), *cells, end_section=place == len(results) - 1)
    return table


def comparison_table(comparisons: Sequence[Comparison], before: str) -> Table:
    """One row a category."""
    table = _table(f"compared with {before}, task by task", "tasks", "items", "before", "after", "difference [95 %]")
    unpaired = comparisons[-1].unpaired
    table.caption = f"{unpaired} tasks that only one of the two played are left out" if unpaired else None
    for one in comparisons:
        cells = (str(one.difference.items), f"{one.before:.3f}", f"{one.after:.3f}", str(one.difference))
        table.add_row(escape(one.category), *map(escape, cells))
    return table


def write_report(
    path: Path, facts: Mapping[str, Any], results: Sequence[CategoryResult], compared: Sequence[Comparison]
) -> None:
    """Write the JSON, whole or not at all.

    Args:
        path: the file.
        facts: what is to be said besides the numbers: provenance, model, config.
        results: see `verl_agent.evaluation.results.results`.
        compared: see `verl_agent.evaluation.results.compare`; may be empty.
    """
    report = {
        "version": REPORT_VERSION,
        **facts,
        "results": [asdict(result) for result in results],
        "comparison": [asdict(one) for one in compared],
    }
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


def _endings(results: Sequence[CategoryResult]) -> str | None:
    overall = next((result for result in results if result.category == ALL), None)
    if overall is None:
        return None
    return "ended by: " + ", ".join(f"{reason} {count}" for reason, count in overall.stops.items())


def _table(title: str, first: str, *headings: str) -> Table:
    """An empty table that fits 80 columns."""
    table = Table(title=escape(title), box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(escape(heading), justify="right", no_wrap=True)
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
