"""One task at each step at which it was played: success over training, first solved, forgotten again.

Without a task in the URL, the page lists the tasks.
"""

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted, did_you_mean
from verl_agent.trace.panels import COLORS, SUCCESS, Curve, Panel
from verl_agent.viewer.charts import add_chart, chart
from verl_agent.viewer.layout import Page
from verl_agent.viewer.links import here, link_to, run_path
from verl_agent.viewer.listings import SHOWN_TASKS, count_tasks, list_tasks
from verl_agent.viewer.pages.episodes import filter_of
from verl_agent.viewer.pages.listing import add_listing
from verl_agent.viewer.pages.table import Table
from verl_agent.viewer.queries import Row, TaskStep, task_history
from verl_agent.viewer.run_data import fetch_run
from verl_agent.viewer.state import OpenedSource, in_thread
from verl_agent.viewer.table_html import Link
from verl_agent.viewer.text import sparkline

COLUMNS = ("env", "task", "success", "category", "episodes", "history")


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/task?env=...&task=...`; without `task`, a list by `show` and filters."""
    if "task" not in request.query_params:
        await _list(page, opened, request)
        return
    env, name = request.query_params.get("env", ""), request.query_params["task"]
    history = await opened.fetch(("task", env, name), lambda: task_history(opened.index, env, name))
    if not history:
        raise ConfigError(f"task {name!r} of environment {env!r} has no valid episode in {opened.key!r}.")
    page.set_title(f"task {env} {name}")
    ui.label(describe_history(history))
    if len(history) > 1:
        curves = [
            Curve(purpose, {at.step: at.success for at in history if at.purpose == purpose}, color)
            for purpose, color in zip(sorted({at.purpose for at in history}), COLORS, strict=False)
        ]
        run = await fetch_run(opened)
        add_chart(SUCCESS.title, chart([(run, Panel(SUCCESS, curves))]))
    most = max(len(at.ids) for at in history)
    samples = [f"sample {number}" for number in range(most)]
    rows = [
        {"step": at.step, "purpose": at.purpose, "solved": f"{at.success:.0%}", "return": at.reward}
        | {name: Link("open", run_path(opened, f"/episode/{one}")) for name, one in zip(samples, at.ids, strict=False)}
        for at in history
    ]
    Table(("step", "purpose", "solved", "return", *samples), rows)


async def _list(page: Page, opened: OpenedSource, request: Request) -> None:
    shown = request.query_params.get("show", "all")
    if shown not in SHOWN_TASKS:
        raise ConfigError(f"show={shown!r} is not allowed. {did_you_mean(shown, SHOWN_TASKS)}")
    chosen = filter_of(request, "show")

    def count() -> dict[str, int]:
        return opened.cached(("tasks", *chosen.values.items()), lambda: count_tasks(opened.index, chosen))

    counts = await in_thread(count)
    with ui.row().classes("gap-4"):
        for name, tasks in counts.items():
            ui.link(f"{name} ({tasks})", here(show=name, page="")).classes("font-bold" if name == shown else "")

    def find(limit: int, offset: int) -> tuple[list[Row], int]:
        rows = list_tasks(opened.index, chosen, shown, limit, offset)
        return list(map(_shown, rows)), count()[shown]

    def link(row: Row) -> str:
        return link_to(run_path(opened, "/task"), {"env": row["env"], "task": row["task"]})

    await add_listing(page, opened, "task", COLUMNS, find, link)


def _shown(row: Row) -> Row:
    """Return a task with its curve as text, and a sentence on when it was solved."""
    first, forgotten = row["first_solved"], row["forgotten"]
    history = "never solved" if first is None else f"first solved at step {first}"
    history += "" if forgotten is None else f", last failed at step {forgotten}"
    return row | {"success": sparkline(map(float, row["curve"].split(","))), "history": history}


def describe_history(history: list[TaskStep]) -> str:
    """Return a sentence on when the task was first solved and when it was last not solved after that."""
    solved = [at.step for at in history if at.success > 0]
    if not solved:
        return f"Not solved at any of {counted(len(history), 'step')}."
    forgotten = [at.step for at in history if at.step > solved[0] and at.success == 0]
    later = counted(len(forgotten), "later step")
    again = f" Not solved at {later}, last at step {forgotten[-1]}." if forgotten else ""
    return f"First solved at step {solved[0]}, solved at {len(solved)} of {counted(len(history), 'step')}.{again}"
