"""Samples of one task side by side: returns, advantages of a group estimator, and the turn where they part.

Without a group in the URL, the page lists the groups.
"""

import json
from asyncio import sleep
from collections.abc import Mapping, Sequence
from hashlib import sha256

from nicegui import ui
from starlette.datastructures import QueryParams
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.viewer.conditions import GROUP_FIELDS
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import Page, link_to, new_page, run_path, show_text, url_of
from verl_agent.viewer.listings import count_groups, learning_signal, list_groups
from verl_agent.viewer.pages.grid import add_grid, focus_first_row, replace_rows
from verl_agent.viewer.pages.paging import add_pager, add_turn_pager, page_number, whole_number
from verl_agent.viewer.parsing import PART
from verl_agent.viewer.queries import GroupSummary, Row, find_group
from verl_agent.viewer.recorded_tokens import trained_advantage
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.text import short_name

PAGE_SIZE = 100
"""Groups of one page of the list."""
_ROUNDED = ("success", "reward", "spread", "turns")
_TEACHES = ("learning signal", "first different turn")
LIST_COLUMNS = ("step", "purpose", "env", "category", "task", "episodes", *_TEACHES, *_ROUNDED)
"""Columns of the list; `spread` is the highest minus the lowest return that the update uses."""


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/group?group=...&step=...&purpose=...`; without `group`, a list by filters."""

    @url_of("/run/{key}/group")
    async def group(key: str, request: Request) -> None:
        query = request.query_params
        with new_page(state) as page:
            opened = page.open(key, f"{key}: groups")
            if "group" not in query:
                await _list_page(page, opened, request)
                return
            step = whole_number("step", query.get("step", ""))
            purpose, env, model = query.get("purpose", "train"), query.get("env"), query.get("model")
            name = ("group", query["group"], step, purpose, env, model)
            summary = await opened.fetch(
                name, lambda: find_group(opened.index, query["group"], step, purpose, env, model)
            )
            if not summary.episodes:
                raise ConfigError(f"no group {query.get('group', '')!r} at step {step}. Open one from an episode.")
            page.set_title(f"group of {summary.episodes[0]['task']}")
            trained = await in_thread(lambda: [trained_advantage(opened, row) for row in summary.episodes])
            _facts(opened, summary)
            if purpose == "train" and None in trained:
                text = (
                    "The trainer's advantage is not recorded for all samples (episode.record_tokens=true records it)."
                )
                ui.label(text).classes("muted")
            actions = await in_thread(lambda: [json.loads(row["actions"]) for row in summary.episodes])
            await _samples(opened, summary, trained, actions, query)


async def _list_page(view: Page, opened: OpenedSource, request: Request) -> None:
    page = page_number(request)
    chosen = Filter.parse({name: value for name, value in request.query_params.items() if name != "page"})
    _fields(opened, chosen)
    await _list(view, opened, chosen, page)


def _fields(opened: OpenedSource, chosen: Filter) -> None:
    fields: dict[str, ui.input] = {}

    def go() -> None:
        values = {name: field.value for name, field in fields.items()}
        ui.navigate.to(link_to(run_path(opened, "/group"), {**chosen.values, **values}))

    with ui.element("div").classes("fields"):
        for name in ("step", "purpose", "env", "category", "task"):
            field = ui.input(name, value=chosen.values.get(name, "")).props("dense outlined")
            fields[name] = field.on("keydown.enter", go)
        ui.button("Filter", on_click=go).props("dense unelevated")


async def _list(view: Page, opened: OpenedSource, chosen: Filter, page: int) -> None:
    path = run_path(opened, "/group")
    uniform = ui.label()
    set_total = add_pager(page, PAGE_SIZE, "group", lambda number: link_to(path, {**chosen.values, "page": number}))

    keys: dict[str, dict[str, object]] = {}  # fields of each shown group as they were recorded, by its id

    def open_group(row: Mapping[str, object], column: str) -> None:
        ui.navigate.to(link_to(path, keys[str(row["id"])]))

    grid = add_grid(LIST_COLUMNS, [], open_group, narrow=("step", "task", "learning signal", "success"))

    trains = "train" in chosen.values.get("purpose", "train").split(",")
    of_training = Filter.parse({**chosen.values, "purpose": "train"})

    async def draw() -> None:
        name = ("groups", *chosen.values.items())
        groups, _ = await opened.fetch(name, lambda: count_groups(opened.index, chosen))
        set_total(groups)
        uniform.text = "No group is recorded."
        if groups:
            trained, equal = await opened.fetch((*name, "train"), lambda: count_groups(opened.index, of_training))
            uniform.text = (
                f"All returns are equal in {equal} of {counted(trained, 'group')}."
                if trained and trains
                else "None of these groups is trained on."
            )
        first = (page - 1) * PAGE_SIZE
        rows = await opened.fetch((*name, page), lambda: list_groups(opened.index, chosen, PAGE_SIZE, first))
        shown = [
            {
                **row,
                "id": _id_of(row),
                **{name: round(row[name], 4) for name in _ROUNDED},
                "first different turn": row["divergence"],
                "learning signal": learning_signal(row),
            }
            for row in rows
        ]
        keys.update((_id_of(row), {name: row[name] for name in GROUP_FIELDS}) for row in rows)
        replace_rows(grid, shown)

    await draw()
    view.refresh_with(opened, draw)
    focus_first_row(grid, LIST_COLUMNS[0])


def _id_of(row: Row) -> str:
    """Return a key of a group: names that look alike have different ones."""
    return sha256(repr([row[name] for name in GROUP_FIELDS]).encode()).hexdigest()


def _facts(opened: OpenedSource, summary: GroupSummary) -> None:
    first = summary.episodes[0]
    with ui.row().classes("items-baseline gap-4"):
        names = " ".join(short_name(first[name]) for name in ("env", "category", "task"))
        ui.label(f"{names}, step {first['step']} ({first['purpose']})")
        task = {"env": first["env"], "task": first["task"]}
        ui.link("this task over training", link_to(run_path(opened, "/task"), task))
    if summary.uniform and first["purpose"] == "train":
        ui.label("All returns are equal: a group estimator learns nothing from this group.").classes("bad-text")
    if summary.divergence is None:
        ui.label("All samples took the same actions.")
    else:
        ui.label(f"First different turn: {summary.divergence + 1}.")


async def _samples(
    opened: OpenedSource,
    summary: GroupSummary,
    trained: Sequence[float | None],
    actions: Sequence[Sequence[str | None]],
    query: QueryParams,
) -> None:
    """Show the actions of each sample; of long episodes a part, at first the one in which they differ."""
    asked = whole_number("turn", query.get("turn", str((summary.divergence or 0) + 1)), 1)
    total = max(map(len, actions))
    first = (min(asked, max(total, 1)) - 1) // PART * PART + 1
    add_turn_pager(first, total, lambda turn: link_to(run_path(opened, "/group"), {**query, "turn": turn}))
    with ui.row(wrap=False).classes("gap-3 items-start overflow-x-auto w-full"):
        for row, relative, advantage, played in zip(
            summary.episodes, summary.advantages, trained, actions, strict=True
        ):
            with ui.card().classes("min-w-64 max-w-96 gap-1"):
                _head(opened, row, relative, advantage)
                for number, action in enumerate(played[first - 1 : first - 1 + PART], start=first):
                    parts = summary.divergence is not None and number == summary.divergence + 1
                    show_text(f"{number}. {action or '(no action)'}", "parting" if parts else "")
            await sleep(0)  # others are served between two samples


def _head(opened: OpenedSource, row: Row, relative: float, advantage: float | None) -> None:
    ui.link(f"sample {row['sample']}", run_path(opened, f"/episode/{row['id']}"))
    ui.label(f"{'solved' if row['success'] else 'not solved'}: {row['stop']}, {counted(row['turns'], 'turn')}").classes(
        "text-sm"
    )
    shaped = "" if row["shaped_return"] is None else f", shaped {row['shaped_return']:g}"
    ui.label(f"return {row['reward']:g}{shaped}")
    shown = relative if advantage is None else advantage
    color = "good-text" if shown > 0 else "bad-text" if shown < 0 else "muted"
    of = "return minus mean of the group" if advantage is None else "mean advantage of the trained tokens"
    ui.label(f"{of}: {shown:+.3g}").classes(f"{color}")
