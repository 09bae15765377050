"""A person at the terminal of a command, who answers questions about an agent's actions."""

import asyncio
import os
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from rich.console import Console
from rich.markup import escape
from typing_extensions import override

from verl_agent.errors import ConfigError, counted
from verl_agent.rollout.candidates import CandidatePolicy
from verl_agent.rollout.oversight import Proposal
from verl_agent.rollout.person import Person, PersonAnswer, explain_commands, read_line
from verl_agent.types import Episode

SHOWN_LINES = 30
"""Last lines of an observation that a question shows."""
SHOWN_TURNS = 10
"""Last turns whose actions a question lists."""
CLOSED = "the terminal was closed."


class TerminalLines:
    """Lines of a terminal, read without blocking the event loop. Text typed before a question is discarded."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor

    async def read(self) -> str | None:
        """Return the next line; None at the end of the input."""
        with suppress(termios.error):  # the terminal was closed, which the read finds
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
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
        alone, copilot: see `Person`.
    """

    def __init__(
        self,
        console: Console,
        lines: TerminalLines | None = None,
        full: bool = False,
        alone: bool = False,
        copilot: CandidatePolicy | None = None,
    ) -> None:
        super().__init__(alone, copilot)
        self._console, self._lines, self._full = console, lines or TerminalLines(), full
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
    async def ask(self, proposal: Proposal, refusal: str) -> PersonAnswer:
        """A closed terminal ends the episode.

        After a question that was withdrawn, by its timeout or the end of its episode, the next line is discarded: the
        person may have typed it for that question.
        """
        async with self._free:
            if self._withdrawn:
                self.announce("\nThe last question was withdrawn. Press Enter to see the next one.")
                if await self._lines.read() is None:
                    return PersonAnswer("end", reason=CLOSED)
            self._withdrawn = True
            answer = await self._answer(proposal, refusal)
            self._withdrawn = False
            return answer

    async def _answer(self, proposal: Proposal, refusal: str) -> PersonAnswer:
        if not refusal:
            told = id(proposal.episode) in self._told
            self._told.add(id(proposal.episode))
            self.announce(question_text(proposal, self.commands(proposal), None if self._full else SHOWN_LINES, told))
        while True:
            if refusal:
                self._console.print(f"[yellow]{escape(refusal)}[/]", highlight=False, soft_wrap=True)
            self._console.print("[bold]>[/] ", end="")
            line = await self._lines.read()
            if line is None:
                return PersonAnswer("end", reason=CLOSED)
            try:
                return self.read(proposal, line)
            except ConfigError as error:
                refusal = str(error)

    def read(self, proposal: Proposal, line: str) -> PersonAnswer:
        """Return the answer in a line; see `read_line`."""
        return read_line(line, self.commands(proposal))

    def announce(self, text: str) -> None:
        """Print a text as it is."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def prompt_of(episode: Episode) -> str:
    """Return the goal and the rules of an episode: its messages up to the first observation."""
    first = episode.messages[: episode.prompt_length if episode.turns else episode.prompt_length - 1]
    return "\n\n".join(message["content"].strip() for message in first)


def question_text(
    proposal: Proposal, commands: Sequence[str] = (), most_lines: int | None = SHOWN_LINES, told: bool = False
) -> str:
    """Return the text of a question: task, turn, history, observation, reply, action, commands and time limit.

    Args:
        commands: commands that suit the turn, see `Person.commands`; empty if nobody is asked.
        most_lines: most lines of the observation, the last ones; None for all, to a person who has seen all turns.
        told: True if the person has read the goal and the rules.
    """
    episode, lines = proposal.episode, proposal.observation.splitlines()
    left_out = 0 if most_lines is None else max(0, len(lines) - most_lines)
    parts = [f"\n── {episode.item.id}, turn {len(episode.turns) + 1} of {episode.max_turns} ──"]
    if not told and (prompt := prompt_of(episode)):
        parts += [prompt, ""]
    if most_lines is not None and episode.turns:
        before = len(episode.turns[:-SHOWN_TURNS])
        parts += [f"({counted(before, 'turn')} before)"] if before else []
        for number, turn in enumerate(episode.turns[-SHOWN_TURNS:], start=before + 1):
            refused = "" if turn.carried_out else " (not carried out)"
            parts.append(f"{number}. {turn.action or '(no action)'}{refused}")
        parts.append("")
    parts += [f"({counted(left_out, 'line')} above)"] if left_out else []
    parts += lines[left_out:]
    if proposal.reply is None:
        return "\n".join([*parts, f"Your turn: type an action. {explain_commands(commands)}."])
    parts.append(f"── the agent replies ──\n{proposal.reply.text.strip()}")
    parts.append(f"── action: {proposal.action if proposal.action is not None else '(none found)'}")
    if commands:
        parts.append(f"{explain_commands(commands)}; or type another action.")
    if proposal.timeout_s is not None:
        parts.append(f"Without an answer within {proposal.timeout_s:g} s the action is rejected.")
    return "\n".join(parts)


def check_terminal(setting: str, instead: str = "let rules decide (by: rule)") -> None:
    """Check that a person can be asked at the terminal of this process.

    Raises:
        ConfigError: the standard input is no terminal.
    """
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{setting} asks a person, and the standard input is no terminal. Start the command in a terminal, or "
            f"{instead}."
        )
