"""Stages of a growing horizon: share of episodes cut, and success by the turns that tasks need."""

from functools import partial

from nicegui import ui

from verl_agent.types import StopReason
from verl_agent.viewer.axes import SHARES, axis_of
from verl_agent.viewer.figure import add_chart
from verl_agent.viewer.layout import add_heading, link_to, new_page, run_path, url_of
from verl_agent.viewer.pages.grid import Row, add_grid
from verl_agent.viewer.stages import Stage, find_stages, needs_of
from verl_agent.viewer.state import OpenedSource, ViewerState


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/horizon`."""

    @url_of("/run/{key}/horizon")
    async def horizon(key: str) -> None:
        with new_page(state) as page:
            opened = page.open(key, f"{key}: horizon")
            await page.show(opened, lambda: find_stages(opened.index), partial(_show, opened))


def _show(opened: OpenedSource, stages: list[Stage]) -> None:
    if not stages:
        ui.label("No training episode is recorded yet.")
        return
    ui.label(
        "A stage is a range of training steps with one turn limit. An episode is cut if the limit ended it unsolved. A "
        "task needs as many turns as its oracle or, where those are not recorded, as its shortest solved episode."
    ).classes("muted")
    for env in dict.fromkeys(stage.env for stage in stages):
        of_env = [stage for stage in stages if stage.env == env]
        add_heading(env)
        _table(opened, of_env)
        needs = needs_of(of_env)
        note = "Later stages should solve the tasks that need more turns than the earlier limits."
        add_chart("Success by the turns that a task needs", _chart(of_env, needs), note)


def _table(opened: OpenedSource, stages: list[Stage]) -> None:
    rows = [
        {
            "stage": number,
            "turn limit": stage.max_turns,
            "steps": f"{stage.first}..{stage.last}",
            "episodes": stage.episodes,
            "solved": f"{stage.solved / stage.episodes:.1%}",
            "cut": f"{stage.cut / stage.episodes:.1%}",
            "mean turns": f"{stage.turns / stage.episodes:.2f}",
        }
        for number, stage in enumerate(stages, start=1)
    ]

    def open_stage(row: Row, column: str) -> None:
        extra = {"cut": {"stop": StopReason.TURN_LIMIT, "success": "no"}, "solved": {"success": "yes"}}.get(column, {})
        parameters = {"purpose": "train", "env": stages[0].env, "step": row["steps"]}
        parameters |= {"max_turns": row["turn limit"], **extra}
        ui.navigate.to(link_to(run_path(opened, "/episodes"), parameters))

    add_grid(list(rows[0]), rows, open_stage, fits=True, narrow=("turn limit", "steps", "solved", "cut"))


def _chart(stages: list[Stage], needs: list[str]) -> dict[str, object]:
    """Return the options of ECharts: a group of bars for each number of needed turns, one bar a stage."""
    series = []
    for number, stage in enumerate(stages, start=1):
        values = []
        for need in needs:
            episodes, solved = stage.by_need.get(need, (0, 0))
            values.append(round(solved / episodes, 4) if episodes else None)
        series.append({"name": f"stage {number}: limit {stage.max_turns}", "type": "bar", "data": values})
    return {"xAxis": axis_of("turns") | {"type": "category", "data": needs}, "yAxis": SHARES, "series": series}
