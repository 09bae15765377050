"""Error analysis of an evaluation: what its failed episodes have in common, by category."""

from nicegui import ui

from verl_agent.results.failures import CategoryFailures, FailedEpisode
from verl_agent.results.failures_report import EPISODE_COLUMNS, JSON, episode_cells, read_failures, summary_lines
from verl_agent.viewer.layout import add_heading, link_to, new_page, run_path, url_of
from verl_agent.viewer.pages.grid import Row, add_grid
from verl_agent.viewer.state import OpenedSource, ViewerState
from verl_agent.visible import make_visible


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/failures`, which shows what `verl-agent failures` wrote."""

    @url_of("/run/{key}/failures")
    async def failures(key: str) -> None:
        with new_page(state) as page:
            opened = page.open(key, f"{key}: failures")
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

    def open_episodes(row: Row, column: str) -> None:
        ui.navigate.to(link_to(run_path(opened, "/episodes"), {name: row[name] for name in ("task", "sample")}))

    narrow = ("task", "first divergence") if "first divergence" in columns else ("task", "stop", "turns")
    fits = len(rows) < 20
    add_grid(columns, rows, open_episodes, sortable=True, fits=fits, narrow=narrow, wide=("first divergence", "missed"))
