"""One task at each step at which it was played: success over training, first solved, forgotten again."""

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError
from verl_agent.viewer.charts import Curve, Panel, RunData, chart
from verl_agent.viewer.layout import frame, link_to, run_path, show_error
from verl_agent.viewer.queries import TaskStep, task_history
from verl_agent.viewer.state import OpenedSource, ViewerState


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/task?env=...&task=...`."""

    @ui.page("/run/{key}/task")
    def task(key: str, request: Request) -> None:
        env, name = request.query_params.get("env", ""), request.query_params.get("task", "")
        try:
            opened = state.get(key)
            history = task_history(opened.index, env, name)
            if not history:
                raise ConfigError(f"task {name!r} of environment {env!r} has no valid episode in {key!r}.")
        except ConfigError as error:
            with frame(state):
                show_error(error)
            return
        with frame(state, opened, f"task {name}"):
            ui.label(f"{env} {name}").classes("text-lg")
            ui.label(describe(history))
            purposes = sorted({at.purpose for at in history})
            curves = [
                Curve(purpose, {at.step: at.success for at in history if at.purpose == purpose}) for purpose in purposes
            ]
            panel = Panel("Success", curves)
            ui.echart(chart("Success", [(RunData(key, [], {at.step: {} for at in history}), panel)])).classes("h-64")
            _table(opened, history)


def describe(history: list[TaskStep]) -> str:
    """Return a sentence on when the task was first solved and when it was last not solved after that."""
    solved = [at.step for at in history if at.success > 0]
    if not solved:
        return f"Not solved at any of {len(history)} steps."
    forgotten = [at.step for at in history if at.step > solved[0] and at.success == 0]
    again = f" Not solved at {len(forgotten)} later steps, last at step {forgotten[-1]}." if forgotten else ""
    return f"First solved at step {solved[0]}, solved at {len(solved)} of {len(history)} steps.{again}"


def _table(opened: OpenedSource, history: list[TaskStep]) -> None:
    with ui.element("table").classes("text-sm"):
        for at in history:
            with ui.element("tr"):
                for text in (f"step {at.step}", at.purpose, f"{at.success:.0%} solved", f"return {at.reward:g}"):
                    with ui.element("td").classes("pr-4"):
                        ui.label(text)
                with ui.element("td"), ui.row().classes("gap-2"):
                    for number, episode in enumerate(at.ids):
                        ui.link(str(number), link_to(run_path(opened, f"/episode/{episode}")))
