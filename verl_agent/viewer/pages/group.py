"""Samples of one task side by side: returns, advantages of a group estimator, and the turn where they part.

Without a group in the URL, the page lists the groups.
"""

import json
from asyncio import sleep
from collections.abc import Sequence
from functools import partial

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.viewer.conditions import GROUP_FIELDS
from verl_agent.viewer.elements import add_fields, show_text
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import Page
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.listings import count_groups, learning_signal, list_groups
from verl_agent.viewer.pages.episodes import filter_of
from verl_agent.viewer.pages.listing import add_listing, add_turn_pager, whole_number
from verl_agent.viewer.parsing import PART
from verl_agent.viewer.queries import GroupSummary, Row, find_group
from verl_agent.viewer.recorded_tokens import trained_advantage
from verl_agent.viewer.state import OpenedSource, in_thread
from verl_agent.viewer.text import short_name

_ROUNDED = ("success", "reward", "spread", "turns")
_TEACHES = ("learning signal", "first different turn")
COLUMNS = ("step", "purpose", "env", "category", "task", "episodes", *_TEACHES, *_ROUNDED)
"""Columns of the list; `spread` is the highest minus the lowest return that the update uses."""


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/group?group=...&step=...&purpose=...`; without `group`, a list by filters."""
    query = request.query_params
    if "group" not in query:
        await _list(page, opened, request)
        return
    step = whole_number("step", query.get("step", ""))
    chosen = (query["group"], step, query.get("purpose", "train"), query.get("env"), query.get("model"))
    summary = await opened.fetch(("group", *chosen), lambda: find_group(opened.index, *chosen))
    if not summary.episodes:
        raise ConfigError(f"no group {query['group']!r} at step {step}. Open one from an episode.")
    page.set_title(f"group of {summary.episodes[0]['task']}")
    trained = await in_thread(lambda: [trained_advantage(opened, row) for row in summary.episodes])
    _facts(opened, summary, trained)
    await _samples(opened, summary, trained, query.get("turn", ""))


async def _list(page: Page, opened: OpenedSource, request: Request) -> None:
    chosen = filter_of(request)
    with ui.element("div").classes("fields"):
        add_fields(("step", "purpose", "env", "category", "task"), button="Filter")
    trains = "train" in chosen.values.get("purpose", "train").split(",")
    of_training = Filter.parse({**chosen.values, "purpose": "train"})

    def count() -> tuple[int, int, int]:
        groups = count_groups(opened.index, chosen)[0]
        return groups, *count_groups(opened.index, of_training)

    def describe(counts: tuple[int, int, int]) -> None:
        groups, trained, equal = counts
        taught = f"All returns are equal in {equal} of {counted(trained, 'group')}."
        nothing = "None of these groups is trained on." if groups else "No group is recorded."
        ui.label(taught if groups and trained and trains else nothing)

    def find(limit: int, offset: int) -> tuple[list[Row], int]:
        rows = list_groups(opened.index, chosen, limit, offset)
        return list(map(_shown, rows)), count_groups(opened.index, chosen)[0]

    def link(row: Row) -> str:
        return link_to(run_path(opened, "/group"), {name: row[name] for name in GROUP_FIELDS})

    await page.show(opened, partial(opened.cached, ("groups", *chosen.values.items()), count), describe)
    await add_listing(page, opened, "group", COLUMNS, find, link)


def _shown(row: Row) -> Row:
    rounded = {name: round(row[name], 4) for name in _ROUNDED}
    return row | rounded | {"first different turn": row["divergence"], "learning signal": learning_signal(row)}


def _facts(opened: OpenedSource, summary: GroupSummary, trained: Sequence[float | None]) -> None:
    first = summary.episodes[0]
    with ui.row().classes("items-baseline gap-4"):
        names = " ".join(short_name(first[name]) for name in ("env", "category", "task"))
        ui.label(f"{names}, step {first['step']} ({first['purpose']})")
        task = {"env": first["env"], "task": first["task"]}
        ui.link("this task over training", link_to(run_path(opened, "/task"), task))
    if summary.uniform and first["purpose"] == "train":
        ui.label("All returns are equal: a group estimator learns nothing from this group.").classes("bad-text")
    same = "All samples took the same actions."
    ui.label(same if summary.divergence is None else f"First different turn: {summary.divergence + 1}.")
    if first["purpose"] == "train" and None in trained:
        text = "The trainer's advantage is not recorded for all samples (episode.record_tokens=true records it)."
        ui.label(text).classes("muted")


async def _samples(opened: OpenedSource, summary: GroupSummary, trained: Sequence[float | None], turn: str) -> None:
    """Show the actions of each sample; of long episodes a part, at first the one in which they differ."""
    actions = await in_thread(lambda: [json.loads(row["actions"]) for row in summary.episodes])
    different = None if summary.divergence is None else summary.divergence + 1
    total = max(map(len, actions))
    first = (min(whole_number("turn", turn or str(different or 1), 1), max(total, 1)) - 1) // PART * PART + 1
    add_turn_pager(first, total)
    with ui.row(wrap=False).classes("gap-3 items-start overflow-x-auto w-full"):
        for row, relative, advantage, played in zip(
            summary.episodes, summary.advantages, trained, actions, strict=True
        ):
            with ui.card().classes("min-w-64 max-w-96 gap-1"):
                _head(opened, row, relative, advantage)
                for number, action in enumerate(played[first - 1 : first - 1 + PART], start=first):
                    show_text(f"{number}. {action or '(no action)'}", "parting" if number == different else "")
            await sleep(0)  # others are served between two samples


def _head(opened: OpenedSource, row: Row, relative: float, advantage: float | None) -> None:
    ui.link(f"sample {row['sample']}", run_path(opened, f"/episode/{row['id']}"))
    solved = "solved" if row["success"] else "not solved"
    ui.label(f"{solved}: {row['stop']}, {counted(row['turns'], 'turn')}").classes("text-sm")
    shaped = "" if row["shaped_return"] is None else f", shaped {row['shaped_return']:g}"
    ui.label(f"return {row['reward']:g}{shaped}")
    shown = relative if advantage is None else advantage
    color = "good-text" if shown > 0 else "bad-text" if shown < 0 else "muted"
    of = "return minus mean of the group" if advantage is None else "mean advantage of the trained tokens"
    ui.label(f"{of}: {shown:+.3g}").classes(color)
