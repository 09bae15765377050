"""Error analysis of an evaluation: what its failed episodes have in common, by category."""

from nicegui import ui
from starlette.requests import Request

from verl_agent.results.failures import CategoryFailures, FailedEpisode
from verl_agent.results.failures_report import EPISODE_COLUMNS, JSON, episode_cells, read_failures, summary_lines
from verl_agent.viewer.elements import add_heading
from verl_agent.viewer.layout import Page
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.pages.table import add_sorted_table
from verl_agent.viewer.state import OpenedSource
from verl_agent.viewer.table_html import TableRow
from verl_agent.visible import make_visible


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/failures`: what `verl-agent failures` wrote."""
    found = await opened.fetch("failures", lambda: read_failures(opened.source.folder))
    if found is None:
        ui.label(f"No {JSON} yet. Write it: verl-agent failures {opened.source.folder}")
        return
    for summary in found[0]:
        _show(opened, summary, [one for one in found[1] if one.category == summary.category])


def _show(opened: OpenedSource, summary: CategoryFailures, failures: list[FailedEpisode]) -> None:
    add_heading(summary.category or "no category")
    for text in summary_lines(summary):
        ui.label(make_visible(text)).classes("break-words")
    for name, (failed, solved) in summary.behaviors.items():
        shares = [
            f"{share:.0%} of {kind}" for share, kind in ((failed, "failed"), (solved, "solved")) if share is not None
        ]
        ui.label(f"{name}: {' and '.join(shares)} episodes")
    rows = [dict(zip(EPISODE_COLUMNS, episode_cells(one), strict=True)) for one in failures]
    columns = [name for name in EPISODE_COLUMNS if any(row[name] for row in rows)]

    def link(row: TableRow) -> str:
        return link_to(run_path(opened, "/episodes"), {name: row[name] for name in ("task", "sample")})

    if rows:
        add_sorted_table(columns, rows, link)
