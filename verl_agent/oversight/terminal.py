"""A person at the terminal of a command, who answers questions about an agent's actions."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from typing_extensions import override

from verl_agent.errors import ConfigError
from verl_agent.oversight.base import Decision, Overseer, Proposal
from verl_agent.oversight.person import Person, read_line
from verl_agent.oversight.question import SHOWN_LINES, Question
from verl_agent.terminal import Console, discard_typed, say
from verl_agent.types import Episode

CLOSED = "the terminal was closed."


class TerminalLines:
    """Lines of a terminal, read without blocking the event loop. Text typed before the prompt is discarded."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self.show_prompt: Callable[[], object] = lambda: None
        """Shows the prompt, from which on a line is an answer."""

    async def read(self) -> str | None:
        """Return the next line; None at the end of the input."""
        discard_typed(self._descriptor)
        self.show_prompt()
        loop, text = asyncio.get_running_loop(), b""
        while not text.endswith(b"\n"):
            ready = asyncio.Event()
            loop.add_reader(self._descriptor, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self._descriptor)
            try:
                part = os.read(self._descriptor, 65536)
            except OSError:  # the terminal was closed
                part = b""
            if not part:
                return None
            text += part
        return text.decode(errors="replace").splitlines()[0]


class TerminalPerson(Person):
    """Person at a terminal. Questions of several episodes are asked one after another.

    Args:
        full: show whole observations, not only their last lines.
    """

    def __init__(self, console: Console, lines: TerminalLines | None = None, full: bool = False) -> None:
        super().__init__()
        self._console, self._lines, self._full = console, lines or TerminalLines(), full
        self._lines.show_prompt = partial(say, console, ("> ", "bold"), end="")
        self._free = asyncio.Lock()
        self._told: set[int] = set()
        """Episodes whose goal and rules the person has read, by their identity."""
        self._withdrawn = False
        """True if the last question was withdrawn, so that the person may be typing the answer to it."""

    @override
    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        try:
            async with super().watch(episode):
                yield
        finally:
            self._told.discard(id(episode))

    @override
    async def ask(self, proposal: Proposal, refusal: str) -> Decision:
        """A closed terminal ends the episode.

        After a question that was withdrawn, by its timeout or the end of its episode, the next line is discarded: the
        person may have typed it for that question.
        """
        async with self._free:
            proposal.on_shown()
            if self._withdrawn:
                say(self._console, "\nThe last question was withdrawn. Press Enter to see the next one.")
                if await self._lines.read() is None:
                    return Decision("end", reason=CLOSED)
                proposal.on_shown()
            self._withdrawn = True
            answer = await self._answer(proposal, refusal)
            self._withdrawn = False
            return answer

    async def _answer(self, proposal: Proposal, refusal: str) -> Decision:
        commands = self.commands(proposal)
        if not refusal:
            told = id(proposal.episode) in self._told
            self._told.add(id(proposal.episode))
            say(self._console, Question.about(proposal, commands).text(None if self._full else SHOWN_LINES, told))
        while True:
            if refusal:
                say(self._console, (refusal, "yellow"))
            line = await self._lines.read()
            if line is None:
                return Decision("end", reason=CLOSED)
            try:
                return read_line(line, commands)
            except ConfigError as error:
                refusal = str(error)


class Watcher(Overseer):
    """Overseer that shows every turn and lets it pass."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @override
    async def decide(self, proposal: Proposal) -> Decision | None:
        if proposal.reply is not None:
            say(self._console, Question.about(proposal).text(most_lines=None))
        return None


def check_terminal(setting: str, instead: str = "let rules decide (by: rule)") -> None:
    """Check that a person can be asked at the terminal of this process.

    Raises:
        ConfigError: the standard input is no terminal, or it is closed.
    """
    if sys.stdin is None or not sys.stdin.isatty():  # None if it was closed
        raise ConfigError(
            f"{setting} asks a person, and the standard input is no terminal. Start the command in a terminal, or "
            f"{instead}."
        )
