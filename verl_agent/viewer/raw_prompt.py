"""Panel of an episode page with the text that the model read before each reply, as its chat template renders it.

A process of its own loads the tokenizer: it takes more memory than the rest of the viewer. Where the settings or the
tokenizer are not at hand, the panel says so and shows the messages.
"""

import asyncio
import json
import sys
from pathlib import Path

from nicegui import ui

from verl_agent.viewer.elements import show_html, show_text
from verl_agent.viewer.episode_html import messages_html
from verl_agent.viewer.parts import LONG, EpisodePart

TIMEOUT_S = 120.0
"""Most seconds that loading the tokenizer and rendering may take."""
_one_at_a_time = asyncio.Lock()


class RawPromptError(Exception):
    """The text cannot be rendered; the message says why."""


class RawPrompts:
    """Panel that renders the prompts of an episode when it is opened for the first time.

    Args:
        place: file of records and number of the line, from 1; None if the file no longer has the episode.
        turn: turn that is shown first, from 1.
    """

    def __init__(self, place: tuple[Path, int] | None, part: EpisodePart, turn: int) -> None:
        self._place, self._part = place, part
        self._texts: list[str] = []
        with ui.expansion("Raw prompt: the text that the model read").classes("w-full") as self._panel:
            turns = part.numbers
            if turns:
                self._turn = ui.select(list(turns), value=max(turns[0], min(turn, turns[-1])), label="before turn")
                self._turn.props("dense outlined").classes("w-32").on_value_change(self._show)
            self._content = ui.column().classes("w-full")
        self._panel.on_value_change(self._open)

    async def _open(self) -> None:
        if not self._panel.value or self._texts:
            return
        self._content.clear()
        with self._content:
            ui.label("Loading the tokenizer ...")
        try:
            if self._part.long:
                raise RawPromptError(f"it is rendered for episodes whose record has at most {LONG / 1e6:g} MB.")
            self._texts = await render_prompts(self._place, self._part.numbers)
        except RawPromptError as error:
            self._content.clear()
            with self._content:
                show_text(f"Messages, without the chat template of the model: {error}")
                show_html(messages_html(self._part.record["messages"]))
            return
        self._show()

    def _show(self) -> None:
        if self._texts:
            self._content.clear()
            with self._content:
                show_text(self._texts[self._turn.value - self._part.first])


async def render_prompts(place: tuple[Path, int] | None, turns: range, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Return the text before the reply of some turns, counted from 1; one process at a time renders.

    Raises:
        RawPromptError: the settings or the tokenizer of the episode are not at hand.
    """
    if place is None:
        raise RawPromptError("the file of the episode has changed.")
    program = (sys.executable, "-m", "verl_agent.evaluation.what_if.raw_prompts")
    command = (*program, f"{place[0]}:{place[1]}", str(turns.start), str(turns.stop - 1))
    async with _one_at_a_time:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError as error:
            raise RawPromptError(f"the tokenizer did not load within {timeout_s:g} s.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    lines = output.splitlines()
    if process.returncode or not lines:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it ended without a message"]
        raise RawPromptError(f"the tokenizer does not load: {last[0]}")
    answer = json.loads(lines[-1])
    if "error" in answer:
        raise RawPromptError(answer["error"])
    return [str(text) for text in answer["prompts"]]
