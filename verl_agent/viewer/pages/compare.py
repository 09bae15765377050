"""Two runs, checkpoints or evaluations, paired by task: solved to failed and back, behaviors, and replies."""

import re
from asyncio import sleep
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from html import escape
from itertools import zip_longest

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.viewer.elements import add_heading, show_html
from verl_agent.viewer.episode_html import block, turn_head
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import new_page, url_of
from verl_agent.viewer.links import here, link_to, run_path
from verl_agent.viewer.pages.files import link_to_text
from verl_agent.viewer.pages.listing import add_turn_pager, whole_number
from verl_agent.viewer.pages.table import add_sorted_table
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
COLUMNS = (
    "env",
    "category",
    "task",
    "change",
    "success A",
    "success B",
    "difference",
    "return A",
    "return B",
    "episodes A",
    "episodes B",
)
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


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs, `a` or `b`, with the conditions on its episodes."""

    name: str
    opened: OpenedSource
    chosen: Filter


async def _show(state: ViewerState, query: dict[str, str]) -> None:
    keys = list(state.opened)
    opened = {name: state.get(query.get(name, key)) for name, key in (("a", keys[0]), ("b", keys[-1]))}
    sides = [await _side(name, one, opened["a"] is opened["b"], query) for name, one in opened.items()]
    change = query.get("change", "")
    if change not in ("", *CHANGES):
        raise ConfigError(f"change={change!r} is not allowed. Allowed: {', '.join(CHANGES)}.")
    if "task" in query:
        await _show_task(sides, query)
        return
    _choices(keys, sides)
    for side in sides:
        shown = ", ".join(f"{name} {value}" for name, value in side.chosen.values.items())
        ui.label(f"{side.name.upper()}: {side.opened.key}, {short_name(shown) or 'all episodes'}")
    pairs = await in_thread(lambda: _pairs(*sides))
    if pairs:
        _summary(pairs, await in_thread(partial(compare_pairs, pairs)))
    else:
        ui.label("No task occurs on both sides. Choose other runs, steps or purposes.")
    _table([pair for pair in pairs if change in ("", pair.change)])


async def _side(name: str, opened: OpenedSource, same_run: bool, query: dict[str, str]) -> Side:
    given = {one: query.get(f"{name}_{one}", "") for one in CONDITIONS}
    if not any(given.values()):
        given = await in_thread(partial(an_evaluation, opened.index, name == "a" and same_run))
    return Side(name, opened, Filter.parse(given))


def _pairs(a: Side, b: Side) -> list[TaskPair]:
    name = ("pairs", b.opened.key, b.opened.changes, *a.chosen.values.items(), "b", *b.chosen.values.items())
    return a.opened.cached(name, lambda: pair_tasks(a.opened.index, b.opened.index, (a.chosen, b.chosen)))


def _choices(keys: list[str], sides: list[Side]) -> None:
    fields: dict[str, ui.select | ui.input] = {}

    def go() -> None:
        ui.navigate.to(link_to("/compare", {name: entry.value for name, entry in fields.items()}))

    for side in sides:
        with ui.element("div").classes("fields"):
            chosen = ui.select(keys, value=side.opened.key, label=f"run {side.name.upper()}")
            fields[side.name] = chosen.props("dense outlined")
            for name in CONDITIONS:
                entry = ui.input(name, value=side.chosen.values.get(name, "")).props("dense outlined")
                fields[f"{side.name}_{name}"] = entry.on("keydown.enter", go)
    ui.button("Compare", on_click=go).props("unelevated")


def _summary(pairs: list[TaskPair], result: PairedChanges) -> None:
    ui.label(
        f"{counted(len(pairs), 'task')} on both sides. Success of B minus A: {result.success}; return of B "
        f"minus A: {result.returns} (95 % intervals over tasks). A task counts as solved if half of its episodes are."
    )
    with ui.row().classes("gap-4"):
        ui.link("all tasks", here(change=""))
        for change, text, share in (
            ("gained", "failed in A, solved in B", result.gained),
            ("lost", "solved in A, failed in B", result.lost),
            ("solved", "solved in both", None),
            ("failed", "failed in both", None),
        ):
            count = sum(pair.change == change for pair in pairs)
            ui.link(f"{text}: {count}{f', share {share}' if share else ''}", here(change=change))
    if result.behaviors:
        changes = ", ".join(f"{name.replace('_', ' ')} {change}" for name, change in result.behaviors.items())
        ui.label(f"Share of turns with a behavior, B minus A: {changes}")


def _table(pairs: list[TaskPair]) -> None:
    if not pairs:
        return
    if len(pairs) > MAX_ROWS:
        ui.label(f"The first {MAX_ROWS} of {len(pairs)} tasks; choose a category or a change for others.")
    rows = []
    for pair in pairs[:MAX_ROWS]:
        (before, after), (earned, later) = pair.success, pair.reward
        shares = (round(value, 3) for value in (before, after, after - before))
        cells = (pair.env, pair.category, pair.task, pair.change, *shares, round(earned, 4), round(later, 4))
        rows.append(dict(zip(COLUMNS, (*cells, *pair.episodes), strict=True)))
    add_sorted_table(COLUMNS, rows, lambda row: here(env=row["env"], task=row["task"], sort=""))


async def _show_task(sides: list[Side], query: dict[str, str]) -> None:
    """Show one episode of either side next to each other: word differences of replies, observations that differ."""
    task = {name: query.get(name, "") for name in ("env", "task")}
    ui.link("all tasks", here(env="", task="", turn="", a_episode="", b_episode=""))
    add_heading(f"{task['env']} {short_name(task['task'])}")
    at = whole_number("turn", query.get("turn", "1"))
    with ui.element("div").classes("sides"):
        shown = [await _episode(side, task, query.get(f"{side.name}_episode", ""), at) for side in sides]
    parts = [part for _, part in shown]
    first, total = max(part.first for part in parts), max(part.total for part in parts)
    add_turn_pager(first, total)
    turns = [part.record["turns"] if part.first == first else [] for part in parts]
    for number, pair in enumerate(zip_longest(*turns), start=first):
        replies = [turn["reply"] if turn else "" for turn in pair]
        same = all(pair) and pair[0]["observation"] == pair[1]["observation"]
        words = await in_thread(partial(word_difference, *replies))
        with ui.element("div").classes("sides"):
            for side, (url, _), turn, words_html in zip("AB", shown, pair, words, strict=True):
                with ui.column().classes("gap-1"):
                    if turn is None:
                        ui.label(f"{side}, turn {number}: the episode has ended.").classes("muted")
                        continue
                    # `word_difference` escapes everything that the model wrote.
                    show_html(f"{turn_head(number, turn)}<div class='mono'>{words_html}</div>")
                    if not same:
                        place, rest = f"turn={number}&part=observation", partial(link_to_text, url)
                        show_html(block(turn["observation"] or "", "sunken", place, rest))
        await sleep(0)  # others are served between two turns


async def _episode(side: Side, task: dict[str, str], given: str, turn: int) -> tuple[str, EpisodePart]:
    """Add links to the episodes of a task on one side, and return the URL of the chosen one and a part of it."""
    chosen = Filter.parse({**side.chosen.values, **task})
    rows = await in_thread(partial(find_episodes, side.opened.index, chosen, MAX_EPISODES))
    if not rows:
        raise ConfigError(f"run {side.opened.key!r} has no episode of task {task['task']!r}. Choose another task.")
    number = next((row["id"] for row in rows if str(row["id"]) == given), rows[0]["id"])
    url = run_path(side.opened, f"/episode/{number}")
    with ui.column().classes("gap-1"):
        ui.link(f"{side.name.upper()}: {side.opened.key}", url)
        with ui.row().classes("gap-2"):
            for row in rows:
                text = f"step {row['step']} sample {row['sample']}{' solved' if row['success'] else ''}"
                link = ui.link(text, here(**{f"{side.name}_episode": row["id"]}))
                link.classes("font-bold" if row["id"] == number else "")
    return url, await in_thread(partial(read_part, side.opened.index, number, turn))
