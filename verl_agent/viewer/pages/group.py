"""Samples of one task side by side: returns, advantages of a group estimator, and the turn where they part."""

import json

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError
from verl_agent.viewer.layout import frame, link_to, run_path, show_error, show_text
from verl_agent.viewer.queries import GroupSummary, Row, find_group
from verl_agent.viewer.state import OpenedSource, ViewerState


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/group?group=...&step=...&purpose=...`."""

    @ui.page("/run/{key}/group")
    def group(key: str, request: Request) -> None:
        query = request.query_params
        try:
            opened = state.get(key)
            step = query.get("step", "")
            if not step.isdecimal():
                raise ConfigError(f"step={step!r} is not a step. Allowed: 0 and more.")
            summary = find_group(opened.index, query.get("group", ""), int(step), query.get("purpose", "train"))
            if not summary.episodes:
                raise ConfigError(f"no group {query.get('group', '')!r} at step {step}. Open one from an episode.")
        except ConfigError as error:
            with frame(state):
                show_error(error)
            return
        with frame(state, opened, f"group of {summary.episodes[0]['task']}"):
            _facts(opened, summary)
            _samples(opened, summary)


def _facts(opened: OpenedSource, summary: GroupSummary) -> None:
    first = summary.episodes[0]
    with ui.row().classes("items-baseline gap-4"):
        ui.label(f"{first['env']} {first['category']} {first['task']}, step {first['step']} ({first['purpose']})")
        task = {"env": first["env"], "task": first["task"]}
        ui.link("this task over training", link_to(run_path(opened, "/task"), task))
    if summary.uniform:
        ui.label("All returns are equal: a group estimator learns nothing from this group.").classes("text-orange-800")
    if summary.divergence is None:
        ui.label("All samples took the same actions.")
    else:
        ui.label(f"The samples part in turn {summary.divergence + 1}.")


def _samples(opened: OpenedSource, summary: GroupSummary) -> None:
    with ui.row(wrap=False).classes("gap-3 items-start overflow-x-auto w-full"):
        for row, advantage in zip(summary.episodes, summary.advantages, strict=True):
            with ui.card().classes("min-w-64 max-w-96 gap-1"):
                _head(opened, row, advantage)
                for number, action in enumerate(json.loads(row["actions"])):
                    parts = summary.divergence is not None and number == summary.divergence
                    show_text(
                        f"{number + 1}. {action or '(no action)'}", "border-t-4 border-orange-500" if parts else ""
                    )


def _head(opened: OpenedSource, row: Row, advantage: float) -> None:
    ui.link(f"sample {row['sample']}", run_path(opened, f"/episode/{row['id']}"))
    ui.label(f"{'solved' if row['success'] else 'not solved'}: {row['stop']}, {row['turns']} turns").classes("text-sm")
    shaped = "" if row["shaped_return"] is None else f", shaped {row['shaped_return']:g}"
    ui.label(f"return {row['reward']:g}{shaped}").classes("text-sm")
    color = "text-green-700" if advantage > 0 else "text-red-700" if advantage < 0 else "text-gray-600"
    ui.label(f"return minus mean of the group: {advantage:+.3g}").classes(f"text-sm {color}")
