"""Two runs, checkpoints or evaluations, paired by task: solved to failed and back, behaviors, and replies."""

import re
from asyncio import sleep
from difflib import SequenceMatcher
from functools import partial
from html import escape
from itertools import zip_longest

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.viewer.episode_html import turn_head
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import add_heading, link_to, new_page, run_path, show_html, show_text, url_of
from verl_agent.viewer.pages.grid import Row, add_grid, focus_first_row
from verl_agent.viewer.pages.paging import add_turn_pager, whole_number
from verl_agent.viewer.pairs import PairedChanges, TaskPair, an_evaluation, compare_pairs, pair_tasks
from verl_agent.viewer.parts import EpisodePart, read_part
from verl_agent.viewer.queries import find_episodes
from verl_agent.viewer.state import OpenedSource, ViewerState, in_thread
from verl_agent.viewer.text import short_name
from verl_agent.visible import make_visible

MAX_WORDS = 1_500
"""Words of each text that are compared; the rest is left out."""
_WORD = re.compile(r"\s+|[^\s]+")


def word_difference(first: str, second: str) -> tuple[str, str]:
    """Return both texts as HTML, with `<mark>` around the words that the other one does not have."""
    one, two = _WORD.findall(first)[: 2 * MAX_WORDS], _WORD.findall(second)[: 2 * MAX_WORDS]
    sides: tuple[list[str], list[str]] = ([], [])
    for kind, start, end, other_start, other_end in SequenceMatcher(None, one, two, autojunk=True).get_opcodes():
        for side, words in zip(sides, (one[start:end], two[other_start:other_end]), strict=True):
            text = escape(make_visible("".join(words)))
            side.append(text if kind == "equal" or not text else f"<mark>{text}</mark>")
    return "".join(sides[0]), "".join(sides[1])


CONDITIONS = ("step", "purpose", "env", "category", "split")
"""Conditions on either side, as parameters `a_<name>` and `b_<name>`."""
CHANGES = ("gained", "lost", "solved", "failed")
"""Changes of a task that the table may be restricted to, by the parameter `change`."""
MAX_ROWS = 500
"""Tasks that the table shows at most."""
MAX_EPISODES = 20
"""Episodes of one task that are offered on either side."""


def add(state: ViewerState) -> None:
    """Register the page `/compare?a=<key>&b=<key>`, with conditions such as `a_step=0&b_step=80`.

    A side without a condition is the last step of its run that was validated or evaluated; side A of the same run is
    the first one.
    With `env` and `task` it compares two episodes of the task, chosen by `a_episode` and `b_episode`.
    """

    @url_of("/compare")
    async def compare_page(request: Request) -> None:
        with new_page(state) as page:
            page.set_title("compare")
            await _show(state, dict(request.query_params))


async def _show(state: ViewerState, query: dict[str, str]) -> None:
    keys = list(state.opened)
    sides = [state.get(query.get("a", keys[0])), state.get(query.get("b", keys[-1]))]
    given = [{name: query[f"{side}_{name}"] for name in CONDITIONS if f"{side}_{name}" in query} for side in "ab"]
    for side, opened, conditions in zip("ab", sides, given, strict=True):
        if not any(conditions.values()):
            conditions |= await in_thread(partial(an_evaluation, opened.index, side == "a" and sides[0] is sides[1]))
            query |= {f"{side}_{name}": value for name, value in conditions.items()}
    chosen = Filter.parse(given[0]), Filter.parse(given[1])
    if query.get("change", "") not in ("", *CHANGES):
        raise ConfigError(f"change={query['change']!r} is not allowed. Allowed: {', '.join(CHANGES)}.")
    if "task" in query:
        await _show_task(sides, chosen, query)
        return
    _choices(state, sides, given)
    for side, opened, conditions in zip("AB", sides, given, strict=True):
        shown = ", ".join(f"{name} {value}" for name, value in conditions.items() if value)
        ui.label(f"{side}: {opened.key}, {short_name(shown) or 'all episodes'}")
    pairs = await _pairs(sides, chosen)
    if pairs:
        _summary(pairs, await in_thread(partial(compare_pairs, pairs)), query)
    else:
        ui.label("No task occurs on both sides. Choose other runs, steps or purposes.")
    _table([pair for pair in pairs if query.get("change", pair.change) == pair.change], query)


async def _pairs(sides: list[OpenedSource], chosen: tuple[Filter, Filter]) -> list[TaskPair]:
    name = ("pairs", sides[1].key, sides[1].changes, *chosen[0].values.items(), "b", *chosen[1].values.items())
    return await sides[0].fetch(name, lambda: pair_tasks(sides[0].index, sides[1].index, chosen))


def _choices(state: ViewerState, sides: list[OpenedSource], given: list[dict[str, str]]) -> None:
    fields: dict[str, ui.select | ui.input] = {}

    def go() -> None:
        ui.navigate.to(link_to("/compare", {name: entry.value for name, entry in fields.items()}))

    for side, opened, values in zip("ab", sides, given, strict=True):
        with ui.element("div").classes("fields"):
            chosen = ui.select(list(state.opened), value=opened.key, label=f"run {side.upper()}")
            fields[side] = chosen.props("dense outlined")
            for name in CONDITIONS:
                entry = ui.input(name, value=values.get(name, "")).props("dense outlined")
                fields[f"{side}_{name}"] = entry.on("keydown.enter", go)
    ui.button("Compare", on_click=go).props("unelevated")


def _summary(pairs: list[TaskPair], result: PairedChanges, query: dict[str, str]) -> None:
    counts = {change: sum(pair.change == change for pair in pairs) for change in CHANGES}
    ui.label(
        f"{counted(len(pairs), 'task')} on both sides. Success of B minus A: {result.success}; return of B "
        f"minus A: {result.returns} (95 % intervals over tasks). A task counts as solved if half of its episodes are."
    )
    with ui.row().classes("gap-4"):
        ui.link("all tasks", link_to("/compare", query | {"change": ""}))
        for change, text, share in (
            ("gained", "failed in A, solved in B", result.gained),
            ("lost", "solved in A, failed in B", result.lost),
            ("solved", "solved in both", None),
            ("failed", "failed in both", None),
        ):
            of = f", share {share}" if share else ""
            ui.link(f"{text}: {counts[change]}{of}", link_to("/compare", query | {"change": change}))
    if result.behaviors:
        changes = ", ".join(f"{name.replace('_', ' ')} {change}" for name, change in result.behaviors.items())
        ui.label(f"Share of turns with a behavior, B minus A: {changes}")


def _table(pairs: list[TaskPair], query: dict[str, str]) -> None:
    if not pairs:
        return
    if len(pairs) > MAX_ROWS:
        ui.label(f"The first {MAX_ROWS} of {len(pairs)} tasks; choose a category or a change for others.")
    rows = [
        {
            "env": pair.env,
            "category": pair.category,
            "task": pair.task,
            "change": pair.change,
            "success A": round(pair.success[0], 3),
            "success B": round(pair.success[1], 3),
            "difference": round(pair.success[1] - pair.success[0], 3),
            "return A": round(pair.reward[0], 4),
            "return B": round(pair.reward[1], 4),
            "episodes A": pair.episodes[0],
            "episodes B": pair.episodes[1],
        }
        for pair in pairs[:MAX_ROWS]
    ]

    def open_task(row: Row, column: str) -> None:
        ui.navigate.to(link_to("/compare", query | {name: row[name] for name in ("env", "task")}))

    narrow = ("task", "success A", "success B", "change")
    grid = add_grid(list(rows[0]), rows, open_task, sortable=True, fits=len(rows) < 20, narrow=narrow)
    focus_first_row(grid, "env")


async def _show_task(sides: list[OpenedSource], chosen: tuple[Filter, Filter], query: dict[str, str]) -> None:
    """Show one episode of either side next to each other: word differences of replies, observations that differ."""
    task = {name: query.get(name, "") for name in ("env", "task")}
    back = {
        name: value for name, value in query.items() if name not in ("env", "task", "turn", "a_episode", "b_episode")
    }
    ui.link("all tasks", link_to("/compare", back))
    add_heading(f"{task['env']} {short_name(task['task'])}")
    at, parts = whole_number("turn", query.get("turn", "1")), list[EpisodePart]()
    with ui.element("div").classes("sides"):
        for side, opened, conditions in zip("ab", sides, chosen, strict=True):
            rows = await in_thread(
                partial(find_episodes, opened.index, Filter.parse({**conditions.values, **task}), MAX_EPISODES)
            )
            if not rows:
                raise ConfigError(f"run {opened.key!r} has no episode of task {task['task']!r}. Choose another task.")
            ids = [row["id"] for row in rows]
            given = query.get(f"{side}_episode", "")
            number = next((one for one in ids if str(one) == given), ids[0])
            parts.append(await in_thread(partial(read_part, opened.index, number, at)))
            with ui.column().classes("gap-1"):
                ui.link(f"{side.upper()}: {opened.key}", run_path(opened, f"/episode/{number}"))
                with ui.row().classes("gap-2"):
                    for row in rows:
                        text = f"step {row['step']} sample {row['sample']}{' solved' if row['success'] else ''}"
                        link = ui.link(text, link_to("/compare", query | {f"{side}_episode": str(row["id"])}))
                        link.classes("font-bold" if row["id"] == number else "")
    first, total = max(part.first for part in parts), max(part.total for part in parts)
    add_turn_pager(first, total, lambda number: link_to("/compare", query | {"turn": str(number)}))
    turns = [part.record["turns"] if part.first == first else [] for part in parts]
    pairs = list(zip_longest(*turns))
    replies = [[one["reply"] if one else "" for one in pair] for pair in pairs]
    differences = await in_thread(lambda: [word_difference(*pair) for pair in replies])
    for number, ((one, two), words) in enumerate(zip(pairs, differences, strict=True), start=first):
        with ui.element("div").classes("sides"):
            for side, turn, words_html in zip("AB", (one, two), words, strict=True):
                with ui.column().classes("gap-1"):
                    if turn is None:
                        ui.label(f"{side}, turn {number}: the episode has ended.").classes("muted")
                        continue
                    # `word_difference` escapes everything that the model wrote.
                    show_html(f"{turn_head(number, turn)}<div class='mono'>{words_html}</div>")
                    if not (one and two and one["observation"] == two["observation"]):
                        show_text(turn["observation"] or "", "sunken w-full")
        await sleep(0)  # others are served between two turns
