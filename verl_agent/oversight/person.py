"""People in the place of an agent: their answers to proposals, and the turns that they take over."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import ClassVar, Literal

from typing_extensions import override

from verl_agent.errors import ConfigError
from verl_agent.oversight.base import MAX_REASON, Decision, Overseer, Proposal
from verl_agent.types import Episode

NO_REASON = "a person decided against it."
MAX_DIGITS = 4
"""Most digits of a number of turns, and of a candidate."""
HELP = {
    "approve": "/approve carries it out",
    "reject": "/reject [reason] does not",
    "take": "/take [turns] action: yours now, and the next turns",
    "back": "/back lets the agent go on",
    "end": "/end [reason] ends the episode",
}
"""Commands of a line, and their explanations."""
COMMANDS = tuple(HELP)


class Person(Overseer, ABC):
    """Overseer that asks a person, or an oracle in a person's place, about every turn."""

    author: ClassVar[Literal["person", "oracle"]] = "person"

    def __init__(self) -> None:
        self._turns_left: dict[int, float] = {}  # of episodes that the person has taken over, by their identity

    @abstractmethod
    async def ask(self, proposal: Proposal, refusal: str) -> Decision:
        """Return the person's answer; call `proposal.on_shown` when the person sees the question.

        refusal: reason for which the last answer was not accepted; "" at first.
        """

    @override
    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._turns_left.pop(id(episode), None)

    @override
    async def decide(self, proposal: Proposal) -> Decision | None:
        """Ask about a proposal, and about turns that the person has taken over, until an answer suits the turn."""
        if proposal.reply is None:
            left = inf if proposal.alone else self._turns_left.get(id(proposal.episode), 0)
            if left < 1:
                return None
            self._turns_left[id(proposal.episode)] = left - 1
        refusal = ""
        while True:
            answer = await self.ask(proposal, refusal)
            try:
                return self._read(proposal, answer)
            except ConfigError as error:
                refusal = str(error)

    def _read(self, proposal: Proposal, answer: Decision) -> Decision | None:
        """Return the decision of an answer; None to ask the policy.

        Raises:
            ConfigError: the answer does not suit the turn.
        """
        key, taken, allowed = id(proposal.episode), proposal.reply is None, self._allowed(proposal)
        if answer.decision == "hand_back":
            if proposal.alone:
                raise ConfigError("there is no model. Start with --copilot MODEL to let one go on.")
            if not taken:
                raise ConfigError(f"the agent has this turn already. Allowed: {allowed}.")
            self._turns_left.pop(key, None)
            return None
        if taken and answer.decision in ("approve", "reject"):
            raise ConfigError(f"you have this turn: there is no proposal. Allowed: {allowed}.")
        if answer.decision == "take_over" and not answer.action:
            raise ConfigError("/take needs the action of this turn: /take [turns] action.")
        reason = answer.reason[:MAX_REASON] or (NO_REASON if answer.decision == "reject" else "")
        decision = replace(answer, by=self.author, reason=reason)
        proposal.apply(decision)
        if answer.decision == "take_over":
            self._turns_left[key] = inf if answer.turns is None else answer.turns - 1
        return decision

    def commands(self, proposal: Proposal) -> tuple[str, ...]:
        """Return the commands that suit a turn, a part of `COMMANDS`."""
        if proposal.alone:
            return ("end",)
        return ("back", "end") if proposal.reply is None else ("approve", "reject", "take", "end")

    def _allowed(self, proposal: Proposal) -> str:
        return ", ".join(["an action", *(f"/{command}" for command in self.commands(proposal))])


def read_line(line: str, suitable: Sequence[str] = COMMANDS) -> Decision:
    """Return the answer in a line that a person typed: a command that begins with `/`, or another action.

    Commands may be shortened: `/a`, `/r the wrong shop`, `/t 3 click [4]`, `/b`, `/e`. `/2` plays the second candidate.

    Raises:
        ConfigError: the line is empty, its command is unknown, or it is `/help`, which the message answers.
    """
    line = line.strip()
    if not line:
        raise ConfigError("an empty line decides nothing. Type an action, or a command that begins with /.")
    if not line.startswith("/"):
        return Decision("edit", line)
    name, _, rest = line[1:].partition(" ")
    if name.lower() in ("help", "h", "?"):
        raise ConfigError(f"{explain_commands(suitable)}; or type an action.")
    if (candidate := _count(name)) and not rest:
        return Decision("edit", candidate=candidate)
    found = [command for command in COMMANDS if name and command.startswith(name.lower())]
    if len(found) != 1:
        allowed = ", ".join(f"/{command}" for command in (*suitable, "help"))
        raise ConfigError(f"/{name} is no command. Allowed: {allowed}.")
    rest = rest.strip()
    if found == ["take"]:
        number, _, action = rest.partition(" ")
        turns = _count(number)
        return Decision("take_over", action.strip() if turns else rest, turns=turns)
    if found == ["approve"]:
        return Decision("approve")
    if found == ["back"]:
        return Decision("hand_back")
    return Decision("end" if found == ["end"] else "reject", reason=rest)


def _count(text: str) -> int | None:
    """Return the number, from 1, that a text has; None without one."""
    return int(text) or None if len(text) <= MAX_DIGITS and text.isascii() and text.isdigit() else None


def explain_commands(commands: Sequence[str]) -> str:
    """Return an explanation of commands, in one line."""
    return "; ".join(HELP[command] for command in commands)
