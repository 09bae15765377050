"""Panel at each turn of an episode: stored answers of `verl-agent what-if`, and the commands that ask for more.

The viewer starts no command: whoever reaches its page could then use the machine's accelerator, and a model beside a
training run may take its memory.
"""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from nicegui import ui

from verl_agent.errors import counted
from verl_agent.evaluation.what_if.recorded import fingerprint
from verl_agent.evaluation.what_if.results import Result, read_results, results_file
from verl_agent.evaluation.what_if.summary import of_turn
from verl_agent.evaluation.what_if.tables import result_tables
from verl_agent.terminal import Console, show_table
from verl_agent.viewer.elements import icon_button, show_text
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.storage import stored_path

POLL_S = 2.0
"""Seconds between two checks for new answers."""
WIDTH = 110
"""Characters of a line of the answers."""
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
                if results:
                    show_text(_as_text(results, action), "overflow-x-auto")
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


def _as_text(results: list[Result], action: str | None) -> str:
    """Return the tables of `verl-agent what-if` as text."""
    text = StringIO()
    show_table(Console(file=text, width=WIDTH, color_system=None), *result_tables(results, action))
    return text.getvalue().strip()


def _command(purpose: str, command: str) -> None:
    with ui.row().classes("items-center gap-2 w-full"):
        ui.label(purpose).classes("muted w-72 max-w-full")
        ui.label(command).classes("mono sunken").style("overflow-wrap: anywhere")
        icon_button("content_copy", "copy the command", lambda: ui.clipboard.write(command), "sm")
