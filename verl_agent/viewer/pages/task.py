"""One task at each step at which it was played: success over training, first solved, forgotten again.

Without a task in the URL, the page lists the tasks.
"""

from collections.abc import Callable
from functools import partial
from html import escape

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.trace.panels import SUCCESS
from verl_agent.viewer.axes import COLORS
from verl_agent.viewer.charts import Curve, Panel, chart, read_run
from verl_agent.viewer.figure import add_chart
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import frame, link_to, run_path, url_of
from verl_agent.viewer.listings import TaskSummary, list_tasks
from verl_agent.viewer.pages.grid import add_cells, plain_table
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
        with frame(state) as page:
            opened = page.open(key, f"{key}: tasks")
            if "task" not in request.query_params:
                await _list_page(opened, request)
                return
            env, name = request.query_params.get("env", ""), request.query_params["task"]
            history = await opened.fetch(("task", env, name), lambda: task_history(opened.index, env, name))
            if not history:
                raise ConfigError(f"task {name!r} of environment {env!r} has no valid episode in {key!r}.")
            page.set_title(f"task {name}")
            ui.label(f"{env} {short_name(name)}").classes("heading")
            ui.label(describe(history))
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
    tasks = await opened.fetch(("tasks", *chosen.values.items()), lambda: list_tasks(opened.index, chosen))
    path = run_path(opened, "/task")
    with ui.row().classes("gap-4"):
        for name, condition in SHOW.items():
            shown = f"{name} ({sum(map(condition, tasks))})"
            link = ui.link(shown, link_to(path, {**chosen.values, "show": name}))
            link.classes("font-bold" if name == show else "")
    chosen_tasks = [task for task in tasks if SHOW[show](task)]
    parameters = {**chosen.values, "show": show}
    set_total = add_pager(page, PAGE_SIZE, "tasks", lambda number: link_to(path, {**parameters, "page": number}))
    set_total(len(chosen_tasks))
    with plain_table():
        for task in chosen_tasks[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]:
            _task_row(opened, task)


def _task_row(opened: OpenedSource, task: TaskSummary) -> None:
    first, forgotten = task.first_solved, task.forgotten
    facts = (
        short_name(task.category),
        f"{task.episodes} episodes",
        "never solved" if first is None else f"first solved at step {first}",
        "" if forgotten is None else f"not solved again at step {forgotten}",
    )
    with ui.element("tr"):
        with ui.element("td"):
            parameters = {"env": task.env, "task": task.task}
            ui.link(f"{task.env} {short_name(task.task)}", link_to(run_path(opened, "/task"), parameters))
        with ui.element("td"):
            # Numbers alone: nothing that a model or an environment wrote is in the markup.
            ui.html(sparkline(list(task.success.values())), sanitize=False)
        add_cells(facts)


def describe(history: list[TaskStep]) -> str:
    """Return a sentence on when the task was first solved and when it was last not solved after that."""
    solved = [at.step for at in history if at.success > 0]
    if not solved:
        return f"Not solved at any of {len(history)} steps."
    forgotten = [at.step for at in history if at.step > solved[0] and at.success == 0]
    again = f" Not solved at {len(forgotten)} later steps, last at step {forgotten[-1]}." if forgotten else ""
    return f"First solved at step {solved[0]}, solved at {len(solved)} of {len(history)} steps.{again}"


def _table(opened: OpenedSource, history: list[TaskStep]) -> None:
    with plain_table():
        for at in history:
            with ui.element("tr"):
                add_cells((f"step {at.step}", at.purpose, f"{at.success:.0%} solved", f"return {at.reward:g}"))
                urls = [escape(run_path(opened, f"/episode/{episode}")) for episode in at.ids]
                links = " ".join(f'<a href="{url}">{number}</a>' for number, url in enumerate(urls))
                ui.html(links, sanitize=False, tag="td")
