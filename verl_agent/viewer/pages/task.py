"""One task at each step at which it was played: success over training, first solved, forgotten again.

Without a task in the URL, the page lists the tasks.
"""

from collections.abc import Callable
from functools import partial

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted, did_you_mean
from verl_agent.trace.panels import COLORS, SUCCESS, Curve, Panel
from verl_agent.viewer.charts import chart, read_run
from verl_agent.viewer.figure import add_chart
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import link_to, new_page, run_path, url_of
from verl_agent.viewer.listings import TaskSummary, summarize_tasks
from verl_agent.viewer.pages.grid import add_plain_table, link_cell, text_cell
from verl_agent.viewer.pages.paging import add_pager, page_number
from verl_agent.viewer.queries import TaskStep, task_history
from verl_agent.viewer.state import OpenedSource, ViewerState
from verl_agent.viewer.svg import sparkline
from verl_agent.viewer.text import short_name

PAGE_SIZE = 50
"""Tasks of one page of the list."""
SHOW: dict[str, Callable[[TaskSummary], bool]] = {
    "all": lambda task: True,
    "never solved": lambda task: task.first_solved is None,
    "solved": lambda task: task.first_solved is not None,
    "forgotten": lambda task: task.forgotten is not None,
}
"""Tasks that the list may be restricted to."""


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/task?env=...&task=...`; without `task`, a list by `show` and filters."""

    @url_of("/run/{key}/task")
    async def task(key: str, request: Request) -> None:
        with new_page(state) as page:
            opened = page.open(key, f"{key}: tasks")
            if "task" not in request.query_params:
                await _list_page(opened, request)
                return
            env, name = request.query_params.get("env", ""), request.query_params["task"]
            history = await opened.fetch(("task", env, name), lambda: task_history(opened.index, env, name))
            if not history:
                raise ConfigError(f"task {name!r} of environment {env!r} has no valid episode in {key!r}.")
            page.set_title(f"task {env} {name}")
            ui.label(describe_history(history))
            purposes = sorted({at.purpose for at in history})
            curves = [
                Curve(purpose, {at.step: at.success for at in history if at.purpose == purpose}, color)
                for purpose, color in zip(purposes, COLORS, strict=False)
            ]
            panel = Panel(SUCCESS, curves)
            if len(history) > 1:
                run = await opened.fetch("run", partial(read_run, opened))
                add_chart(SUCCESS.title, chart([(run, panel)]), "Dotted lines: the turn limit changes.")
            _table(opened, history)


async def _list_page(opened: OpenedSource, request: Request) -> None:
    query = request.query_params
    show, page = query.get("show", "all"), page_number(request)
    if show not in SHOW:
        raise ConfigError(f"show={show!r} is not allowed. {did_you_mean(show, SHOW)}")
    chosen = Filter.parse({name: value for name, value in query.items() if name not in ("page", "show")})

    def by_condition() -> dict[str, list[TaskSummary]]:
        tasks = summarize_tasks(opened.index, chosen)
        return {name: list(filter(condition, tasks)) for name, condition in SHOW.items()}

    tasks = await opened.fetch(("tasks", *chosen.values.items()), by_condition)
    path = run_path(opened, "/task")
    with ui.row().classes("gap-4"):
        for name, of_condition in tasks.items():
            link = ui.link(f"{name} ({len(of_condition)})", link_to(path, {**chosen.values, "show": name}))
            link.classes("font-bold" if name == show else "")
    parameters = {**chosen.values, "show": show}
    set_total = add_pager(page, PAGE_SIZE, "task", lambda number: link_to(path, {**parameters, "page": number}))
    set_total(len(tasks[show]))
    add_plain_table(_task_row(opened, task) for task in tasks[show][(page - 1) * PAGE_SIZE : page * PAGE_SIZE])


def _task_row(opened: OpenedSource, task: TaskSummary) -> list[str]:
    """Return the cells of a task as HTML."""
    first, forgotten = task.first_solved, task.forgotten
    facts = (
        short_name(task.category),
        counted(task.episodes, "episode"),
        "never solved" if first is None else f"first solved at step {first}",
        "" if forgotten is None else f"last failed at step {forgotten}",
    )
    url = link_to(run_path(opened, "/task"), {"env": task.env, "task": task.task})
    curve = sparkline(list(task.success.values()))
    return [link_cell(f"{task.env} {short_name(task.task)}", url), curve, *map(text_cell, facts)]


def describe_history(history: list[TaskStep]) -> str:
    """Return a sentence on when the task was first solved and when it was last not solved after that."""
    solved = [at.step for at in history if at.success > 0]
    if not solved:
        return f"Not solved at any of {counted(len(history), 'step')}."
    forgotten = [at.step for at in history if at.step > solved[0] and at.success == 0]
    later = counted(len(forgotten), "later step")
    again = f" Not solved at {later}, last at step {forgotten[-1]}." if forgotten else ""
    return f"First solved at step {solved[0]}, solved at {len(solved)} of {counted(len(history), 'step')}.{again}"


def _table(opened: OpenedSource, history: list[TaskStep]) -> None:
    def cells(at: TaskStep) -> list[str]:
        facts = (f"step {at.step}", at.purpose, f"{at.success:.0%} solved", f"return {at.reward:g}")
        links = [link_cell(str(sample), run_path(opened, f"/episode/{one}")) for sample, one in enumerate(at.ids)]
        return [*map(text_cell, facts), " ".join(links)]

    add_plain_table(map(cells, history))
