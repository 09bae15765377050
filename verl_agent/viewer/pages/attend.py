"""Page of a person who attends one running episode: approve, edit, reject, take over, hand back, end."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import ClientWebSocketResponse
from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.oversight.attend import attending
from verl_agent.oversight.person import read_line
from verl_agent.oversight.question import NO_ACTION, Question
from verl_agent.oversight.socket import receive
from verl_agent.viewer.elements import show_text
from verl_agent.viewer.layout import Page
from verl_agent.viewer.pages.control import NO_NAME, ActingPerson
from verl_agent.viewer.pages.listing import whole_number
from verl_agent.viewer.state import OpenedSource
from verl_agent.visible import is_plain, make_visible, one_line, show_bytes

RETRY_S = 0.2
"""Seconds between two tries to attend."""
NUMBER_OF_CLICK = "(event) => event.detail < 2 && emit(event.target.closest('[data-question]').dataset.question)"
"""Handler in the browser that sends the number of the question; not for the second click of a double click."""
BUTTONS = {
    "approve": "carry the proposed action out",
    "edit": "play the text as the action instead",
    "take_over": "play the text as the action, and have the next turns too",
    "reject": "do not carry it out; the text is the reason, which the agent reads",
    "hand_back": "let the agent go on",
    "end": "end the episode; the text is the reason",
}
"""Decisions and what they do."""
COMMANDS = {"take_over": "take", "hand_back": "back"}
"""Commands of a line (`Question.commands`) for decisions with another name."""


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/control/<episode>`."""
    number = whole_number("episode", request.path_params["number"])
    page.set_title(f"{opened.key}: episode {number}")
    desk, client = _Desk(opened.source.folder, number, ActingPerson(request)), ui.context.client
    client.on_connect(desk.attend)
    client.on_disconnect(lambda: None if client.has_socket_connection else desk.leave())


class _Desk:
    """Questions about one episode, and the person's answers."""

    def __init__(self, folder: Path, episode: int, person: ActingPerson) -> None:
        self._folder, self._episode, self._person = folder, episode, person
        self._stream: ClientWebSocketResponse | None = None
        self._number = 0
        self._status = ui.label("Waiting for the episode to begin.").classes("heading")
        self._notice, self._answered = ui.label(), False
        with ui.expansion("Goal and rules", value=True).classes("w-full"):
            self._prompt = ui.label().classes("mono w-full max-h-[40vh] overflow-auto")
        with ui.expansion().classes("w-full") as self._past:
            self._history = ui.column().classes("w-full gap-1 max-h-[60vh] overflow-auto flex-nowrap")
        self._observation = ui.label().classes("mono w-full max-h-[60vh] overflow-auto sunken")
        self._reply = ui.label().classes("mono w-full")
        self._action = ui.label().classes("mono accent whitespace-pre-wrap")
        self._action.set_visibility(False)
        self._candidates = ui.row()
        self._text = (
            ui.input("action, or reason").props("outlined").classes("w-full mono").on("keydown.enter", self._enter)
        )
        self._buttons: dict[str, ui.button] = {}
        with ui.row():
            for decision, explained in BUTTONS.items():
                button = ui.button(decision.replace("_", " ")).tooltip(explained)
                self._buttons[decision] = button.on(
                    "click", lambda event, chosen=decision: self._click(chosen, event.args), js_handler=NUMBER_OF_CLICK
                )
        self._enable(())
        self._task: asyncio.Task[None] | None = None

    def leave(self) -> None:
        """Leave the episode, which is paused then."""
        if self._task is not None:
            self._task.cancel()

    async def attend(self) -> None:
        """Attend the episode to its end; before it begins, and while somebody else has it, try again."""
        earlier = self._task
        if earlier is not None and not earlier.cancelling():
            return
        self._task = asyncio.current_task()
        if earlier is not None:  # the page lost its connection, and has one again
            await asyncio.wait([earlier])
        while True:
            try:
                if not self._person.name:
                    self._status.text = NO_NAME
                else:
                    async with attending(self._folder, self._episode, self._person.name) as self._stream:
                        while (message := await receive(self._stream)) is not None and "ended" not in message:
                            self._show(message)
                    self._status.text = "The run has ended." if message is None else "The episode has ended."
                    return
            except ConfigError as error:
                self._status.text = f"{str(error)[:1].upper()}{str(error)[1:]}"
            finally:
                self._stream = None
                self._enable(())
            await asyncio.sleep(RETRY_S)

    def _show(self, message: dict[str, Any]) -> None:
        if "notice" in message:
            self._notice.text = make_visible(message["notice"])
            return
        if "question" not in message:
            self._status.text = f"You attend episode {self._episode}. Closing this page leaves it paused."
            return
        if message["refusal"]:
            ui.notify(make_visible(message["refusal"]), type="negative", multi_line=True)
        if self._answered:  # a notice before the first question, such as that of a paused run, is about it
            self._notice.text, self._answered = "", False
        question, self._number = Question(**message["question"]), message["number"]
        taken = question.reply is None
        self._status.text = f"{one_line(question.turn)}: {'your turn' if taken else 'the agent proposes'}"
        self._prompt.text = make_visible(question.prompt)
        self._show_history(question)
        self._observation.text = make_visible(question.observation)
        self._reply.text = make_visible(question.reply or "")
        self._action.text = _describe_action(question)
        self._action.set_visibility(not taken)
        self._candidates.clear()
        with self._candidates:
            for number, label in enumerate(question.candidates, start=1):
                answer = {"decision": "edit", "candidate": number}
                button = ui.button(one_line(label.strip())).props(f"outline no-caps data-question={self._number}")
                button.on(
                    "click", lambda event, chosen=answer: self._answer(chosen, event.args), js_handler=NUMBER_OF_CLICK
                )
        self._enable(("edit", *question.commands))

    def _show_history(self, question: Question) -> None:
        total = len(question.history) + question.earlier
        self._past.text = f"History: {counted(total, 'message')} since the first observation"
        self._history.clear()
        with self._history:
            if question.earlier:
                ui.label(f"The last {len(question.history)} are shown.").classes("muted")
            for message in question.history:
                ui.label(one_line(message["role"])).classes("small muted")
                show_text(message["content"])

    async def _enter(self) -> None:
        await self._answer(self._text.value or "", str(self._number))

    async def _click(self, decision: str, number: str) -> None:
        text = (self._text.value or "").strip()
        field = {"edit": "action", "take_over": "action", "reject": "reason", "end": "reason"}.get(decision)
        await self._answer({"decision": decision, **({field: text} if field else {})}, number)

    async def _answer(self, answer: str | dict[str, Any], number: str) -> None:
        """Send the answer to the question with a number, which is that of the person's click."""
        if self._stream is None or not any(button.enabled for button in self._buttons.values()):
            ui.notify("Nothing is asked at the moment.", type="warning")
            return
        if number != str(self._number):
            ui.notify("This answer was to an earlier question, so it has no effect.", type="warning")
            return
        try:
            values = asdict(read_line(answer)) if isinstance(answer, str) else answer
        except ConfigError as error:
            ui.notify(str(error), type="negative")
            return
        self._enable(())  # first: the next question may come while this answer is sent
        self._candidates.clear()
        self._text.value, self._answered = "", True
        self._status.text = "Waiting for the next turn."
        with suppress(ConnectionError):  # the run has ended, which `_attend` tells
            await self._stream.send_json({**values, "number": self._number})

    def _enable(self, commands: Sequence[str]) -> None:
        for decision, button in self._buttons.items():
            button.set_enabled(COMMANDS.get(decision, decision) in commands)
            button.props(f"data-question={self._number}")


def _describe_action(question: Question) -> str:
    """Return the action of a question, its bytes if it is no plain text, and the rule that asks."""
    if question.action is None:
        return f"Action: {NO_ACTION}"
    as_bytes = (
        ""
        if is_plain(question.action) and question.action != NO_ACTION
        else f"\nAs bytes: {show_bytes(question.action)}"
    )
    asked_by = f"\nAsked by {make_visible(question.asked_by)}" if question.asked_by else ""
    return f"Action: {make_visible(question.action)}{as_bytes}{asked_by}"
