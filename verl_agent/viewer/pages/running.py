"""Episodes in play: a list that follows the run, and the transcript of one so far."""

from functools import partial

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import counted
from verl_agent.rollout.live import RunningEpisode, read_running
from verl_agent.viewer.elements import show_html
from verl_agent.viewer.episode_html import messages_html, turn_html
from verl_agent.viewer.layout import REFRESH_S, Page
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.pages.listing import whole_number
from verl_agent.viewer.pages.table import Table, in_order
from verl_agent.viewer.state import OpenedSource, in_thread
from verl_agent.viewer.text import short_name

COLUMNS = ("number", "purpose", "step", "env", "task", "sample", "turn", "turn limit")
NONE = "No episode is in play, or its process has not answered yet."


async def show_list(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/running`."""
    status = ui.label()
    table = Table(COLUMNS, link=lambda row: run_path(opened, f"/running/{row['number']}"), sortable=True)

    async def draw() -> None:
        found = await in_thread(partial(read_running, opened.source.records))
        status.text = f"{counted(len(found), 'episode')} in play" if found else NONE
        table.show(in_order(map(_row, found), request.query_params.get("sort", "")))

    await draw()
    page.every(REFRESH_S, draw)


def _row(one: RunningEpisode) -> dict[str, object]:
    record = one.record
    shown = {name: record[name] for name in ("purpose", "step", "env", "task", "sample")}
    return {**shown, "number": one.number, "turn": len(record["turns"]) + 1, "turn limit": record["max_turns"]}


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/running/<number>`."""
    number = whole_number("episode", request.path_params["number"])
    status = ui.label().classes("heading")
    seen, prompted, shown = False, False, 0
    with ui.row().classes("gap-4"):
        ui.link("episodes in play", run_path(opened, "/running"))
        ended = ui.link("ended episodes of its task", run_path(opened, "/episodes"))
    ended.set_visibility(False)
    turns = ui.column().classes("w-full gap-2")

    async def draw() -> None:
        nonlocal seen, prompted, shown
        running = await in_thread(partial(read_running, opened.source.records))
        record = next((one.record for one in running if one.number == number), None)
        if record is None:
            status.text = "The episode has ended." if seen else NONE
            return
        status.text = f"{short_name(record['task'])}: turn {len(record['turns']) + 1} of {record['max_turns']}"
        if not seen:
            task = {"env": record.get("env_label", record["env"]), "task": record["task"]}
            ended.props["href"] = link_to(run_path(opened, "/episodes"), task)
            ended.set_visibility(True)
        with turns:
            if not prompted:
                show_html(messages_html(record["messages"][: record["prompt_length"]]))
            for place, turn in enumerate(record["turns"][shown:], start=shown + 1):
                with ui.card().classes("w-full"):
                    show_html(turn_html(place, turn))
        seen, prompted, shown = True, bool(record["prompt_length"]), len(record["turns"])

    await draw()
    page.every(REFRESH_S, draw)
