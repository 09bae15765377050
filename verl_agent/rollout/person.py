"""People in the place of an agent: their answers to proposals, and the turns that they take over."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as settings_class

from verl_agent.errors import ConfigError
from verl_agent.rollout.oversight import Decision, Overseer, Proposal
from verl_agent.sections import STRICT
from verl_agent.types import Episode, Review

MAX_REASON = 500
"""Most characters of the reason for a decision."""
NO_REASON = "a person decided against it."
MAX_TURNS = 10_000
COMMANDS = ("approve", "reject", "take", "back", "end")
HELP = {
    "approve": "/approve carries it out",
    "reject": "/reject [reason] does not",
    "take": "/take [turns] action: yours now, and the next turns",
    "back": "/back lets the agent go on",
    "end": "/end [reason] ends the episode",
}
"""Explanation of each command of a line."""


@settings_class(frozen=True, config=STRICT)
class Answer:
    """Answer of a person to a proposal.

    Attributes:
        decision: `approve` carries the action out. `edit` plays `action` instead. `take_over` does the same, and takes
            the next turns too. `reject` tells the policy `reason`. `hand_back` asks the policy for this turn, after
            `take_over`. `end` ends the episode.
        action: other action, for `edit` and `take_over`, and for a turn that was taken over.
        thought: reason for the action, which the reply contains if the agent's replies have thoughts.
        reason: reason for a rejection or for the end of the episode.
        turns: number of turns to take over, this one included; None until they are handed back.
    """

    decision: Literal["approve", "edit", "take_over", "reject", "hand_back", "end"]
    action: str = ""
    thought: str = ""
    reason: str = ""
    turns: Annotated[int, Field(ge=1)] | None = None


class Person(Overseer, ABC):
    """Overseer that asks a person, or an oracle in a person's place, about every turn."""

    author: ClassVar[Literal["person", "oracle"]] = "person"

    def __init__(self) -> None:
        self._turns_left: dict[int, float] = {}  # of episodes that the person has taken over, by their identity

    @abstractmethod
    async def ask(self, proposal: Proposal, refusal: str) -> Answer:
        """Return the person's answer.

        Args:
            proposal: the turn; without a reply in a turn that the person has taken over.
            refusal: reason for which the last answer was not accepted; "" at first.
        """

    def take_over(self, episode: Episode, turns: int | None = None) -> None:
        """Let the person play the next turns of an episode, or all of them without `turns`."""
        self._turns_left[id(episode)] = inf if turns is None else turns

    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        """See `Overseer`."""
        try:
            yield
        finally:
            self._turns_left.pop(id(episode), None)

    async def act(self, proposal: Proposal) -> Decision | None:
        """See `Overseer`."""
        left = self._turns_left.get(id(proposal.episode), 0)
        if left < 1:
            return None
        self._turns_left[id(proposal.episode)] = left - 1
        return await self._decide(proposal)

    async def review(self, proposal: Proposal) -> Decision | None:
        """See `Overseer`."""
        return await self._decide(proposal)

    async def _decide(self, proposal: Proposal) -> Decision | None:
        refusal = ""
        while True:
            answer = await self.ask(proposal, refusal)
            try:
                return self._read(proposal, answer)
            except ConfigError as error:
                refusal = str(error)

    def _read(self, proposal: Proposal, answer: Answer) -> Decision | None:
        """Return the decision of an answer; None to ask the policy.

        Raises:
            ConfigError: the answer does not suit the turn.
        """
        taken = proposal.reply is None
        if answer.decision == "hand_back":
            if not taken:
                raise ConfigError("the policy has this turn already. Allowed: approve, edit, take_over, reject, end.")
            self._turns_left.pop(id(proposal.episode), None)
            return None
        if answer.decision == "end":
            return Decision(Review("ended", self.author, answer.reason[:MAX_REASON]))
        if taken and answer.decision in ("approve", "reject"):
            raise ConfigError("you have this turn: there is no proposal. Allowed: an action, hand_back, end.")
        if answer.decision == "approve":
            return Decision(Review("approved", self.author))
        if answer.decision == "reject":
            return Decision(Review("rejected", self.author, answer.reason[:MAX_REASON] or NO_REASON))
        reply = proposal.write(answer.action, answer.thought)
        if answer.decision == "take_over":
            self.take_over(proposal.episode, None if answer.turns is None else answer.turns - 1)
        over = taken or answer.decision == "take_over"
        return Decision(Review("taken_over" if over else "edited", self.author), reply)


def read_line(line: str) -> Answer:
    """Return the answer in a line that a person typed: a command that begins with `/`, or another action.

    Commands may be shortened: `/a`, `/r the wrong shop`, `/t 3 click [4]`, `/b`, `/e`.

    Raises:
        ConfigError: the line is empty, or its command is unknown.
    """
    line = line.strip()
    if not line:
        raise ConfigError("an empty line decides nothing. Type an action, or a command that begins with /.")
    if not line.startswith("/"):
        return Answer("edit", line)
    name, _, rest = line[1:].partition(" ")
    found = [command for command in COMMANDS if name and command.startswith(name.lower())]
    if len(found) != 1:
        raise ConfigError(f"/{name} is no command. Allowed: {', '.join('/' + command for command in COMMANDS)}.")
    rest = rest.strip()
    if found == ["take"]:
        number, _, action = rest.partition(" ")
        counted = number.isascii() and number.isdigit() and 1 <= int(number) < MAX_TURNS
        return Answer("take_over", action.strip(), turns=int(number)) if counted else Answer("take_over", rest)
    if found == ["approve"]:
        return Answer("approve")
    if found == ["back"]:
        return Answer("hand_back")
    return Answer("end" if found == ["end"] else "reject", reason=rest)
