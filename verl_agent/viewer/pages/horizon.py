"""Turn limits of training: share of episodes cut, success by the turns that tasks need, and the mean limit by step."""

from collections.abc import Mapping, Sequence
from functools import partial

from nicegui import ui
from starlette.requests import Request

from verl_agent.types import StopReason
from verl_agent.viewer.charts import SHARES, add_chart, axis_of
from verl_agent.viewer.elements import add_heading
from verl_agent.viewer.layout import Page
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.pages.table import Table
from verl_agent.viewer.stages import Stage, find_stages, mean_limits, needs_of
from verl_agent.viewer.state import OpenedSource
from verl_agent.viewer.table_html import Link

CUT = {"stop": StopReason.TURN_LIMIT, "success": "no"}
"""Filter of the episodes that a turn limit cut."""


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/horizon`."""
    await page.show(opened, lambda: (find_stages(opened.index), mean_limits(opened.index)), partial(_show, opened))


def _show(opened: OpenedSource, found: tuple[list[Stage], Mapping[str, Sequence[tuple[int, float]]]]) -> None:
    stages, means = found
    if not stages:
        ui.label("No training episode is recorded yet.")
        return
    ui.label(
        "An episode is cut if the turn limit ended it unsolved. A task needs as many turns as its oracle or, where "
        "those are not recorded, as its shortest solved episode. Limits that grow follow each other; those by task or "
        "group share steps."
    ).classes("muted")
    for env in dict.fromkeys(stage.env for stage in stages):
        of_env = [stage for stage in stages if stage.env == env]
        add_heading(env)
        rows = [_row(opened, stage) for stage in of_env]
        Table(list(rows[0]), rows)
        if env in means:
            add_chart("Mean turn limit by step", _curve(means[env]), "Groups of one step have different limits.")
        needs = needs_of(of_env)
        note = "Longer limits should solve the tasks that need more turns than the shorter ones."
        add_chart("Success by the turns that a task needs", _chart(of_env, needs), note)


def _row(opened: OpenedSource, stage: Stage) -> dict[str, object]:
    steps = f"{stage.first}..{stage.last}"

    def link(text: object, **parameters: str) -> Link:
        of_stage = {"purpose": "train", "env": stage.env, "step": steps, "max_turns": stage.max_turns}
        return Link(text, link_to(run_path(opened, "/episodes"), of_stage | parameters))

    return {
        "turn limit": stage.max_turns,
        "steps": steps,
        "episodes": link(stage.episodes),
        "solved": link(f"{stage.solved / stage.episodes:.1%}", success="yes"),
        "cut": link(f"{stage.cut / stage.episodes:.1%}", **CUT),
        "mean turns": f"{stage.turns / stage.episodes:.2f}",
    }


def _chart(stages: list[Stage], needs: list[str]) -> dict[str, object]:
    """Return the options of ECharts: a group of bars for each number of needed turns, one bar a turn limit."""
    series = []
    for stage in stages:
        found = [stage.by_need.get(need, (0, 0)) for need in needs]
        values = [round(solved / episodes, 4) if episodes else None for episodes, solved in found]
        series.append({"name": f"limit {stage.max_turns}", "type": "bar", "data": values})
    return {"xAxis": axis_of("turns") | {"type": "category", "data": needs}, "yAxis": SHARES, "series": series}


def _curve(means: Sequence[tuple[int, float]]) -> dict[str, object]:
    """Return the options of ECharts: the mean turn limit over training steps."""
    points = [[step, round(mean, 2)] for step, mean in means]
    steps = axis_of("step", min="dataMin", max="dataMax", minInterval=1)
    series = [{"name": "mean turn limit", "type": "line", "data": points}]
    return {"xAxis": steps, "yAxis": axis_of(min=0), "series": series}
