"""Episodes in play: a list that follows the run, and the transcript of one so far."""

from functools import partial

from nicegui import ui

from verl_agent.errors import counted
from verl_agent.rollout.live import RunningEpisode, read_running
from verl_agent.viewer.episode_html import messages_html, turn_html
from verl_agent.viewer.layout import Page, link_to, new_page, run_path, show_html, url_of
from verl_agent.viewer.pages.grid import add_grid, replace_rows
from verl_agent.viewer.pages.paging import whole_number
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.text import short_name

REFRESH_S = 1.0
COLUMNS = ("number", "purpose", "step", "env", "task", "sample", "turn", "turn limit")
NONE = "No episode is in play, or its process has not answered yet."


def add(state: ViewerState) -> None:
    """Register the pages `/run/<key>/running` and `/run/<key>/running/<number>`."""

    @url_of("/run/{key}/running")
    async def running(key: str) -> None:
        with new_page(state) as page:
            await _list(page, page.open(key, f"{key}: running"))

    @url_of("/run/{key}/running/{number}")
    async def transcript(key: str, number: str) -> None:
        with new_page(state) as page:
            await _transcript(page, page.open(key, f"{key}: episode in play"), whole_number("episode", number))


async def _list(page: Page, opened: OpenedSource) -> None:
    status = ui.label()
    grid = add_grid(
        COLUMNS,
        [],
        lambda row, _: ui.navigate.to(run_path(opened, f"/running/{row['number']}")),
        sortable=True,
        narrow=("number", "task", "turn"),
    )

    async def draw() -> None:
        found = await in_thread(partial(read_running, opened.source.records))
        status.text = f"{counted(len(found), 'episode')} in play" if found else NONE
        replace_rows(grid, map(_row, found))

    await draw()
    page.every(REFRESH_S, draw)


def _row(one: RunningEpisode) -> dict[str, object]:
    record = one.record
    return {
        **{name: record[name] for name in ("purpose", "step", "env", "task", "sample")},
        "id": one.number,
        "number": one.number,
        "turn": len(record["turns"]) + 1,
        "turn limit": record["max_turns"],
    }


async def _transcript(page: Page, opened: OpenedSource, number: int) -> None:
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
        found = [one.record for one in running if one.number == number]
        if not found:
            status.text = "The episode has ended." if seen else NONE
            return
        (record,) = found
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
