"""Page of a person who attends one running episode: approve, edit, reject, take over, hand back, end."""

from pathlib import Path
from typing import Any

from nicegui import ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.rollout.person import PersonAnswer, read_line
from verl_agent.runs.control.attend import Attendance
from verl_agent.types import Message
from verl_agent.viewer.layout import NO_NAME, ActingPerson, frame, show_text, url_of
from verl_agent.viewer.state import ViewerState
from verl_agent.viewer.text import make_visible

POLL_S = 0.1
"""Seconds between two looks for a question."""
BUTTONS = {
    "approve": "carry the proposed action out",
    "edit": "play the text as the action instead",
    "take_over": "play the text as the action, and have the next turns too",
    "reject": "do not carry it out; the text is the reason, which the agent reads",
    "hand_back": "let the agent go on",
    "end": "end the episode; the text is the reason",
}
"""Decisions and what they do."""
TAKEN, PROPOSED = ("edit", "hand_back", "end"), ("approve", "edit", "take_over", "reject", "end")
"""Decisions that suit a turn that the person has taken over, and one with a proposal."""


def add(state: ViewerState) -> None:
    """Register the page `/run/<key>/control/<episode>`."""

    @url_of("/run/{key}/control/{episode}")
    def attend(key: str, episode: int, request: Request) -> None:
        with frame(state) as page:
            opened = page.open(key, f"{key}: episode {episode}")
            desk = _Desk(opened.source.folder, episode, ActingPerson(request))
            ui.context.client.on_disconnect(desk.leave)


class _Desk:
    """Questions about one episode, and the person's answers.

    Args:
        folder: folder of the run.
        episode: number of the episode.
        person: person who acts.
    """

    def __init__(self, folder: Path, episode: int, person: ActingPerson) -> None:
        self._folder, self._episode, self._person = folder, episode, person
        self._attendance: Attendance | None = None
        self._status = ui.label("Waiting for the episode to begin.").classes("heading")
        with ui.expansion("Goal and rules", value=True).classes("w-full"):
            self._prompt = ui.label().classes("mono w-full max-h-[40vh] overflow-auto")
        with ui.expansion().classes("w-full") as self._past:
            self._history = ui.column().classes("w-full gap-1 max-h-[60vh] overflow-auto flex-nowrap")
        self._observation = ui.label().classes("mono w-full max-h-[60vh] overflow-auto sunken")
        self._reply = ui.label().classes("mono w-full")
        self._action = ui.label().classes("mono accent")
        self._action.set_visibility(False)
        self._candidates = ui.row()
        self._text = (
            ui.input("action, or reason").props("outlined").classes("w-full mono").on("keydown.enter", self._enter)
        )
        self._buttons: dict[str, ui.button] = {}
        with ui.row():
            for decision, explained in BUTTONS.items():
                button = ui.button(decision.replace("_", " "), on_click=lambda _, chosen=decision: self._click(chosen))
                self._buttons[decision] = button.tooltip(explained)
        self._enable(())
        self._timer = ui.timer(POLL_S, self._poll)

    def leave(self) -> None:
        """Leave the episode, which is paused then."""
        self._timer.deactivate()
        if self._attendance is not None:
            self._attendance.close()
            self._attendance = None

    def _poll(self) -> None:
        try:
            if self._attendance is None:
                if not self._person.name:
                    self._status.text = NO_NAME
                    return
                self._attendance = Attendance(self._folder, self._episode, self._person.name)
            while self._timer.active and self._attendance is not None and self._attendance.ready:
                self._show(self._attendance.receive())
        except ConfigError as error:  # not begun yet, or somebody else has it: tried again
            self._status.text = f"{str(error)[:1].upper()}{str(error)[1:]}"
            self._enable(())
            if self._attendance is not None:
                self._attendance.close()
                self._attendance = None

    def _show(self, message: dict[str, Any] | None) -> None:
        if message is None or "ended" in message:
            self._status.text = "The run has ended." if message is None else "The episode has ended."
            self._enable(())
            self.leave()
            return
        if "question" not in message:
            self._status.text = f"You attend episode {self._episode}. Closing this page leaves it paused."
            return
        if message["refusal"]:
            ui.notify(message["refusal"], type="negative", multi_line=True)
        taken = message["reply"] is None
        self._status.text = f"{message['turn']}: {'your turn' if taken else 'the agent proposes'}"
        self._prompt.text = make_visible(message["prompt"])
        self._show_history(message["history"], message["earlier"])
        self._observation.text = message["observation"]
        found = message["action"] if message["action"] is not None else "(none found)"
        self._reply.text = "" if taken else message["reply"].strip()
        self._action.text = f"Action: {found}"
        self._action.set_visibility(not taken)
        self._candidates.clear()
        with self._candidates:
            for number, one in enumerate(message["candidates"], start=1):
                answer = PersonAnswer("edit", candidate=number)
                label = f"{one['share']:.0%} {one['action']}"
                ui.button(label, on_click=lambda _, chosen=answer: self._answer(chosen)).props("outline no-caps")
        self._enable(TAKEN if taken else PROPOSED)

    def _show_history(self, messages: list[Message], earlier: int) -> None:
        self._past.text = f"History: {counted(len(messages) + earlier, 'message')} since the first observation"
        self._history.clear()
        with self._history:
            if earlier:
                ui.label(f"The last {len(messages)} are shown.").classes("muted")
            for message in messages:
                ui.label(message["role"]).classes("small muted")
                show_text(message["content"])

    def _enter(self) -> None:
        try:
            self._answer(read_line(self._text.value or ""))
        except ConfigError as error:
            ui.notify(str(error), type="negative")

    def _click(self, decision: str) -> None:
        text = (self._text.value or "").strip()
        if decision in ("edit", "take_over"):
            self._answer(PersonAnswer(decision, text))  # type: ignore[arg-type]
        else:
            self._answer(PersonAnswer(decision, reason=text if decision in ("reject", "end") else ""))  # type: ignore[arg-type]

    def _answer(self, answer: PersonAnswer) -> None:
        if self._attendance is None or not any(button.enabled for button in self._buttons.values()):
            ui.notify("Nothing is asked at the moment.", type="warning")
            return
        self._enable(())
        self._candidates.clear()
        self._text.value = ""
        self._status.text = "Waiting for the next turn."
        self._attendance.answer(answer)

    def _enable(self, decisions: tuple[str, ...]) -> None:
        for decision, button in self._buttons.items():
            button.set_enabled(decision in decisions)
