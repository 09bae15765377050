"""One episode turn by turn: thought, action, observation, rewards, and why it ended."""

from asyncio import sleep
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import counted
from verl_agent.trace.turn_record import turn_text
from verl_agent.viewer.conditions import GROUP_FIELDS
from verl_agent.viewer.elements import icon_button, show_html, show_text
from verl_agent.viewer.episode_html import (
    Fact,
    FindImage,
    ShowRest,
    episode_facts,
    facts_html,
    judgements_html,
    messages_html,
    names_of,
    turn_html,
)
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import Page, add_keys
from verl_agent.viewer.links import here, link_to, run_path, show_in_url
from verl_agent.viewer.pages.episodes import filter_of
from verl_agent.viewer.pages.files import image_url, link_to_text
from verl_agent.viewer.pages.labels import add_label_editor
from verl_agent.viewer.pages.listing import add_turn_pager, whole_number
from verl_agent.viewer.parts import EpisodePart, read_part
from verl_agent.viewer.queries import Row, find_episodes, find_neighbors, find_row
from verl_agent.viewer.raw_prompt import RawPrompts
from verl_agent.viewer.recorded_tokens import file_with_tokens
from verl_agent.viewer.state import OpenedSource, in_thread
from verl_agent.viewer.state_panels import StatePanels
from verl_agent.viewer.text import short_name
from verl_agent.viewer.why import WhyPanels, record_place

MAX_SAMPLES = 64
"""Samples of the group that the page links at most; the page of the group has all."""


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/episode/<id>`; the parameter `turn` counts from 1, the others are those of a filter."""
    number = whole_number("episode", request.path_params["number"])
    turn = whole_number("turn", request.query_params.get("turn") or "0")
    part = await in_thread(lambda: read_part(opened.index, number, turn))
    row = find_row(opened.index, number) or {}
    page.set_title(f"{short_name(part.record['task'])} · step {part.record['step']}")
    await _facts(opened, row, part)
    await _neighbors(opened, number, filter_of(request, "turn"))
    add_label_editor(opened, row)
    place = await in_thread(lambda: record_place(opened.index, number))
    why, states = WhyPanels(place), StatePanels(part, lambda: opened.index.read(number))
    url = run_path(opened, f"/episode/{number}")
    texts = ShownTexts(partial(image_url, opened), partial(link_to_text, url))
    await _turns(part, turn, texts, why, states)


class ShownTexts(NamedTuple):
    """Images and long texts of an episode, as its page links them."""

    image: FindImage
    rest: ShowRest


async def _facts(opened: OpenedSource, row: Row, part: EpisodePart) -> None:
    record = part.record
    facts = episode_facts(record, part.total)
    if row["tokens"]:
        facts.append(Fact(counted(row["tokens"], "token")))
    if row["replaced"]:
        facts.append(Fact("replaced: the resumed run played this episode again", "warn"))
    show_html(facts_html(facts), "facts")
    if record["error"]:
        show_text(record["error"])
    show_html(facts_html(names_of(record)), "facts")
    with ui.row().classes("items-baseline gap-4"):
        group = Filter({name: str(row[name]) for name in GROUP_FIELDS})
        for other in await in_thread(lambda: find_episodes(opened.index, group, MAX_SAMPLES)):
            if other["id"] != row["id"]:
                ui.link(f"sample {other['sample']}", run_path(opened, f"/episode/{other['id']}"))
        ui.link("whole group", link_to(run_path(opened, "/group"), group.values))
        task = {"env": row["env"], "task": row["task"]}
        if await in_thread(lambda: file_with_tokens(opened, row)) is not None:
            ui.link("tokens", run_path(opened, f"/episode/{row['id']}/tokens"))
        ui.link("this task over training", link_to(run_path(opened, "/task"), task))
    if judgements := record.get("judgements"):
        show_html(judgements_html(judgements))


async def _neighbors(opened: OpenedSource, number: int, around: Filter) -> None:
    """Add links to the episodes before and after in the filter that the reader came from; keys `p` and `n`."""
    name = ("neighbors", number, *around.values.items())
    neighbors = await opened.fetch(name, lambda: find_neighbors(opened.index, number, around))
    urls = [link_to(run_path(opened, f"/episode/{other}"), around.values) if other else "" for other in neighbors]

    def go(url: str) -> None:
        if url:
            ui.navigate.to(url)

    with ui.row().classes("gap-4"):
        for text, url in zip(("previous episode", "next episode"), urls, strict=True):
            if url:
                ui.link(text, url)
        back = "episodes of this filter" if around.values else "all episodes"
        ui.link(back, link_to(run_path(opened, "/episodes"), around.values))
    add_keys({"p": ("previous episode", lambda: go(urls[0])), "n": ("next episode", lambda: go(urls[1]))})


async def _turns(part: EpisodePart, chosen: int, texts: ShownTexts, why: WhyPanels, states: StatePanels) -> None:
    record, behaviors = part.record, part.behaviors
    chosen = position = min(chosen, part.total)

    def show_turn(turn: int) -> None:
        nonlocal position
        turn = max(0, min(turn, part.total))
        if turn and turn not in part.numbers:
            ui.navigate.to(here(turn=turn))
            return
        position = turn
        ui.run_javascript(f"document.getElementById('turn-{turn}')?.scrollIntoView({{block: 'start'}})")
        show_in_url(turn=turn)

    def advance() -> bool:
        show_turn(position + 1)
        return position < part.total

    following = ("next turn", lambda: show_turn(position + 1))
    previous = ("previous turn", lambda: show_turn(position - 1))
    add_keys({"j": following, "ArrowRight": following, "k": previous, "ArrowLeft": previous})
    add_turn_pager(part.first, part.total)
    with ui.row().classes("gap-1 sticky top-12 surface z-10 p-1 w-full items-center") as bar:
        for number, turn, shown in zip(part.numbers, record["turns"], behaviors, strict=True):
            look = "good" if turn["reward"] > 0 else "bad" if turn["reward"] < 0 else ""
            button = ui.button(str(number), on_click=lambda number=number: show_turn(number), color=None)
            button.props("dense unelevated size=sm").classes("warn" if shown else f"chip {look}")
            button.tooltip(", ".join(shown) or "turn")
    with (
        ui.expansion(f"Prompt ({counted(record['prompt_length'], 'message')})", value=chosen == 0)
        .props("id=turn-0")
        .classes("w-full")
    ):
        show_html(messages_html(record["messages"][: record["prompt_length"]], texts.rest))
        states.add(0)
    for number, turn, shown in zip(part.numbers, record["turns"], behaviors, strict=True):
        with ui.card().props(f"id=turn-{number}").classes("w-full gap-1 scroll-mt-24"):
            show_html(turn_html(number, turn, shown, *texts))
            states.add(number)
            why.add(number, turn_text(turn))
        await sleep(0)  # fifty turns take 0.1 s, between which others are served
    add_turn_pager(part.first, part.total)
    why.follow()
    states.fill()
    with bar:
        _add_replay(advance)
    RawPrompts(why.place, part, chosen)
    if chosen:
        ui.timer(0.3, lambda: show_turn(chosen), once=True)


def _add_replay(advance: Callable[[], bool]) -> None:
    """Add a button that starts and stops the replay, and its speed. Call it when the page is complete.

    Args:
        advance: function that shows the next turn and returns False at the last one.
    """

    def step() -> None:
        timer.active = advance()

    def toggle() -> None:
        timer.active = not timer.active

    timer = ui.timer(1.0, step, active=False)
    speed = ui.select({seconds: f"{seconds:g} s a turn" for seconds in (2.0, 1.0, 0.5)}, value=1.0)
    speed.props('dense aria-label="speed of the replay"').bind_value_to(timer, "interval")
    button = icon_button("play_arrow", "replay, or pause it", toggle)
    button.bind_icon_from(timer, "active", lambda active: "pause" if active else "play_arrow")
