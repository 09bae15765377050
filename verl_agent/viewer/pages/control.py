"""Buttons of a person in control of a run: pause, resume, step, end an episode, end the run."""

from typing import Any
from urllib.parse import quote, unquote

from nicegui import run, ui
from starlette.requests import Request

from verl_agent.errors import ConfigError, counted
from verl_agent.oversight.socket import send_command
from verl_agent.viewer.layout import REFRESH_S, Page
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.state import OpenedSource
from verl_agent.viewer.text import MAX_NAME

TIMEOUT_S = 10.0
NAME_COOKIE = "verl_agent_name"
NO_NAME = "Write your name first: others see who acts."


class ActingPerson:
    """Field with the name of the person who acts on a control page. The browser remembers it in a cookie.

    The name is not that of the server's owner: whoever has the link may act.

    Args:
        request: request of the page; its parameter `name` goes before the cookie.
    """

    def __init__(self, request: Request) -> None:
        known = request.query_params.get("name") or unquote(request.cookies.get(NAME_COOKIE, ""))
        self._field = ui.input("your name", value=known[:MAX_NAME], on_change=self._remember)
        self._field.props("dense outlined").classes("w-64")
        if known:
            ui.timer(0.1, self._remember, once=True)

    @property
    def name(self) -> str:
        """Name of the person; "" before one is written."""
        return str(self._field.value or "").strip()[:MAX_NAME]

    def _remember(self) -> None:
        ui.run_javascript(f"document.cookie = '{NAME_COOKIE}={quote(self.name)}; path=/; SameSite=Strict'")


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/control`."""
    _Buttons(opened, ActingPerson(request))


class _Buttons:
    """State of a run, with buttons for the run and for each of its episodes."""

    def __init__(self, opened: OpenedSource, person: ActingPerson) -> None:
        self._opened, self._folder, self._person = opened, opened.source.folder, person
        with ui.row():
            for command in ("pause", "resume", "step"):
                ui.button(command, on_click=lambda _, chosen=command: self._send({"command": chosen}))
            ui.button("end the run", color="negative", on_click=self._confirm)
        self._line = ui.label()
        self._episodes = ui.column()
        self._labels: dict[int, ui.label] = {}
        ui.timer(REFRESH_S, lambda: self._send({"command": "status"}, quiet=True))

    async def _send(self, command: dict[str, Any], quiet: bool = False) -> None:
        """Send a command and show the answer; a refusal is a notification, unless `quiet`."""
        if not quiet and not self._person.name:
            ui.notify(NO_NAME, type="warning")
            return
        try:
            answer = await run.io_bound(send_command, self._folder, command | {"name": self._person.name}, TIMEOUT_S)
        except ConfigError as error:
            if quiet:
                self._show(str(error), [])
            else:
                ui.notify(str(error), type="negative")
            return
        if answer is None:  # the viewer ends
            return
        if "killed" in answer:
            self._show(f"The run was ended: {counted(answer['killed'], 'process')} killed.", [])
            return
        by = f" by {answer['paused_by']}" if answer.get("paused_by") else ""
        self._show(f"The run is paused{by}." if answer["paused"] else "The run goes on.", answer["episodes"])

    def _show(self, line: str, episodes: list[dict[str, Any]]) -> None:
        self._line.text = line
        if [one["episode"] for one in episodes] != list(self._labels):
            self._episodes.clear()
            with self._episodes:
                self._labels = {one["episode"]: self._episode(one["episode"]) for one in episodes}
        for one in episodes:  # in place: a button that is drawn anew loses a click
            attended = f", attended by {one['attended_by']}" if one["attended_by"] else ""
            state = "paused" if one["paused"] else "playing"
            self._labels[
                one["episode"]
            ].text = f"{one['episode']}: {one['task']}, turn {one['turn']}, {state}{attended}"

    def _episode(self, number: int) -> ui.label:
        """Add the line of an episode and return its label."""
        with ui.row().classes("items-center"):
            label = ui.label()
            for command in ("pause", "resume", "step", "end-episode"):
                sent = {"command": command, "episode": number}
                button = ui.button(command, on_click=lambda _, chosen=sent: self._send(chosen))
                button.props(f'dense flat aria-label="{command} {number}"')
            ui.link("attend", f"{link_to(run_path(self._opened, '/control'))}/{number}")
        return label

    def _confirm(self) -> None:
        with ui.dialog(value=True) as dialog, ui.card():
            ui.label("Kill all processes of the run? Records of ended episodes stay.")
            with ui.row():
                ui.button("kill", color="negative", on_click=lambda: self._kill(dialog))
                ui.button("cancel", on_click=dialog.close)

    async def _kill(self, dialog: ui.dialog) -> None:
        dialog.close()
        await self._send({"command": "end"})
