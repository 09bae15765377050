"""Panel at each turn of an episode: stored answers of `verl-agent what-if`, and the commands that ask for more.

The viewer starts no command: whoever reaches its page could then use the machine's accelerator, and a model beside a
training run may take its memory.
"""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nicegui import ui

from verl_agent.errors import counted
from verl_agent.evaluation.what_if.recorded import fingerprint
from verl_agent.evaluation.what_if.results import Result, read_results, results_file
from verl_agent.evaluation.what_if.summary import (
    ActionEffect,
    ReplySummary,
    of_turn,
    policy_name,
    summarize_continuations,
    summarize_replies,
)
from verl_agent.results.statistics import Estimate
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.layout import icon_button, show_text
from verl_agent.viewer.storage import stored_path
from verl_agent.visible import make_visible

POLL_S = 2.0
"""Seconds between two checks for new answers."""
SHOWN = 20
"""Most actions in a list of shares."""
NOTE = (
    "The text before an action is what the model said. It need not be the cause of the action: the last command "
    "measures how often the action changes without it."
)


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Place of a record, and its identity in results.

    Attributes:
        fingerprint: see `verl_agent.evaluation.what_if.recorded.fingerprint`.
    """

    file: Path
    line: int
    fingerprint: str

    def command(self, turn: int, options: str) -> str:
        """Return the command that asks a turn, counted from 1, for a shell in the folder of the viewer."""
        try:
            shown = self.file.relative_to(Path.cwd())
        except ValueError:
            shown = self.file
        return f"verl-agent what-if {shlex.quote(f'{shown}:{self.line}')} --turn {turn}{options}"


def record_place(index: RecordIndex, episode: int) -> RecordPlace | None:
    """Return the place of an episode; None if the file no longer has it."""
    row = index.db.execute(
        """SELECT path, offset, length, (SELECT fingerprint FROM heads WHERE episode = episodes.id) AS fingerprint,
            (SELECT count(*) FROM episodes AS e WHERE e.file = episodes.file AND e.offset <= episodes.offset)
            + (SELECT count(*) FROM bad_lines AS b WHERE b.file = episodes.file AND b.offset < episodes.offset) AS line
        FROM episodes JOIN files ON files.id = episodes.file WHERE episodes.id = ?""",
        (episode,),
    ).fetchone()
    if row is None:
        return None
    if row["fingerprint"] is not None:
        return RecordPlace(stored_path(row), row["line"], row["fingerprint"])
    try:
        with stored_path(row).open("rb") as file:
            file.seek(row["offset"])
            return RecordPlace(stored_path(row), row["line"], fingerprint(file.read(row["length"])))
    except OSError:
        return None


class WhyPanels:
    """Panels of all turns of one episode page, which follow the file of answers while the page is open.

    Args:
        place: place of the record; None if the file no longer has it.
    """

    def __init__(self, place: RecordPlace | None) -> None:
        self._place = place
        self._draw: list[Callable[[], None]] = []
        self._results: list[Result] = []
        self._version: tuple[int, int] | None = None
        if self._place is not None:
            self._read()

    @property
    def place(self) -> tuple[Path, int] | None:
        """File of records and number of the line, from 1; None if the file no longer has the episode."""
        return None if self._place is None else (self._place.file, self._place.line)

    def add(self, turn: int, action: str | None) -> None:
        """Add the panel of a turn, counted from 1, with its recorded action."""
        place = self._place
        if place is None:
            return
        with ui.expansion().props("dense").classes("w-full") as panel:
            content = ui.column().classes("w-full gap-2")

        def draw() -> None:
            results = of_turn(self._results, place.fingerprint, turn)
            panel.text = f"Why this action? {describe_samples(results)}".rstrip()
            content.clear()
            if not panel.value:
                return
            with content:
                _results(results, action)
                ui.label(NOTE).classes("muted")
                for purpose, options in _OPTIONS:
                    _command(purpose, place.command(turn, options))

        panel.on_value_change(draw)
        draw()
        self._draw.append(draw)

    def follow(self) -> None:
        """Follow the file. Call it when the page is complete: NiceGUI delivers a page at its first timer."""
        if self._place is not None:
            ui.timer(POLL_S, self._draw_again)

    def _draw_again(self) -> None:
        if self._read():
            for draw in self._draw:
                draw()

    def _read(self) -> bool:
        """Read the answers if their file has changed, and return True if so."""
        assert self._place is not None
        file = results_file(self._place.file)
        try:
            status = os.stat(file)
        except OSError:
            return False
        version = (status.st_mtime_ns, status.st_size)
        if version == self._version:
            return False
        self._version = version
        self._results = [one for one in read_results(file) if one["episode"] == self._place.fingerprint]
        return True


_OPTIONS = (
    ("What else would it have done?", ""),
    ("What if it had acted otherwise?", " --action 'ACTION'"),
    ("What if it had acted as the oracle does?", " --oracle"),
    ("Does it need the thought?", " --without-thought"),
)
"""Question and options of each command."""


def describe_samples(results: list[Result]) -> str:
    """Return the number of stored samples in words; empty without any."""
    replies = sum(len(one["replies"]) for one in results if one["kind"] == "replies")
    episodes = sum(len(one["episodes"]) for one in results if one["kind"] == "continuations")
    parts = [counted(replies, "reply")] * (replies > 0) + [f"{counted(episodes, 'episode')} played on"] * (episodes > 0)
    return f"({', '.join(parts)})" if parts else ""


def _results(results: list[Result], action: str | None) -> None:
    summaries = summarize_replies(results, action)
    for summary in summaries:
        _replies(summary)
    for ordinary, without in pairwise(summaries):
        if without.difference is not None:
            _thought(ordinary.changed, without.changed, without.difference)
    effects = summarize_continuations(results, action)
    for part in dict.fromkeys((one.policy, one.max_turns) for one in effects):
        _effects([one for one in effects if (one.policy, one.max_turns) == part])


def _replies(summary: ReplySummary) -> None:
    kind = "" if summary.with_thought else ", made to begin with the action"
    ui.label(f"{counted(summary.replies, 'reply')} of {policy_name(summary.policy)}{kind}").classes("font-bold")
    with ui.element("div").classes("grid gap-x-4 w-full").style("grid-template-columns: minmax(0, 1fr) 8rem 12rem"):
        for one in summary.actions[:SHOWN]:
            name = make_visible("no action" if one.action is None else one.action)
            shown = ui.label(name + (" (recorded)" if one.recorded else "")).classes("mono")
            shown.style("overflow-wrap: anywhere; unicode-bidi: plaintext")
            with shown:
                ui.tooltip(make_visible(one.example[:500])).classes("mono")
            ui.linear_progress(one.share.mean, show_value=False, size="0.9rem").classes("self-center")
            ui.label(f"{one.replies}: {percent(one.share)}")
    if len(summary.actions) > SHOWN:
        ui.label(counted(len(summary.actions) - SHOWN, "more action")).classes("muted")


def _thought(ordinary: Estimate, without: Estimate, difference: Estimate) -> None:
    ui.label(
        f"Another action than the recorded one: {percent(ordinary)} with the thought, {percent(without)} without it; "
        f"difference {percent(difference)}."
    )


def _effects(effects: list[ActionEffect]) -> None:
    title = f"After the action, {policy_name(effects[0].policy)} plays on, up to turn {effects[0].max_turns}"
    ui.label(title).classes("font-bold")
    for one in effects:
        with ui.column().classes("gap-0 w-full"):
            show_text("no action" if one.action is None else one.action)
            left_out = f", {one.env_errors} left out after environment errors" if one.env_errors else ""
            difference = "" if one.difference is None else f"; difference {percent(one.difference)}"
            ui.label(
                f"{one.source}: {counted(one.episodes, 'episode')}{left_out}; success {percent(one.success)}"
                f"{difference}; return {one.returns}; {one.turns:.1f} turns"
            ).classes("muted")


def percent(estimate: Estimate) -> str:
    """Return an estimate in percent with its interval."""
    return f"{estimate.mean:.0%} [{estimate.low:.0%}, {estimate.high:.0%}]"


def _command(purpose: str, command: str) -> None:
    with ui.row().classes("items-center gap-2 w-full"):
        ui.label(purpose).classes("muted w-72 max-w-full")
        ui.label(command).classes("mono sunken").style("overflow-wrap: anywhere")
        icon_button("content_copy", "copy the command", lambda: ui.clipboard.write(command), "sm")
