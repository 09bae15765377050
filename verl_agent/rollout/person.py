"""People in the place of an agent: their answers to proposals, and the turns that they take over."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as settings_class
from typing_extensions import override

from verl_agent.errors import ConfigError
from verl_agent.rollout.candidates import Candidate, CandidatePolicy
from verl_agent.rollout.oversight import Decision, Overseer, Proposal
from verl_agent.sections import STRICT, section
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
class PersonAnswer:
    """Answer of a person to a proposal."""

    decision: Literal["approve", "edit", "take_over", "reject", "hand_back", "end"]
    """`approve` carries the action out. `edit` plays `action` instead. `take_over` does the same, and takes the next
    turns too. `reject` tells the policy `reason`. `hand_back` asks the policy for this turn, after `take_over`. `end`
    ends the episode."""
    action: str = ""
    """Other action, for `edit` and `take_over`, and for a turn that was taken over."""
    thought: str = ""
    """Reason for the action, which the reply contains if the agent's replies have thoughts."""
    reason: str = ""
    """Reason for a rejection or for the end of the episode."""
    turns: Annotated[int, Field(ge=1)] | None = None
    """Number of turns to take over, this one included; None until they are handed back."""
    candidate: Annotated[int, Field(ge=1)] | None = None
    """Number of the copilot's candidate to play instead of `action`, from 1; for `edit` only."""


class Person(Overseer, ABC):
    """Overseer that asks a person, or an oracle in a person's place, about every turn.

    Args:
        alone: no policy plays, so that every turn is the person's.
        copilot: policy of the episode, whose candidates the person may pick; None without candidates.
    """

    author: ClassVar[Literal["person", "oracle"]] = "person"

    def __init__(self, alone: bool = False, copilot: CandidatePolicy | None = None) -> None:
        self._alone, self._copilot = alone, copilot
        self._turns_left: dict[int, float] = {}  # of episodes that the person has taken over, by their identity

    @abstractmethod
    async def ask(self, proposal: Proposal, refusal: str) -> PersonAnswer:
        """Return the person's answer.

        refusal: reason for which the last answer was not accepted; "" at first.
        """

    def take_over(self, episode: Episode, turns: int | None = None) -> None:
        """Let the person play the next turns of an episode, or all of them without `turns`."""
        self._turns_left[id(episode)] = inf if turns is None else turns

    @override
    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._turns_left.pop(id(episode), None)

    @override
    async def act(self, proposal: Proposal) -> Decision | None:
        left = inf if self._alone else self._turns_left.get(id(proposal.episode), 0)
        if left < 1:
            return None
        self._turns_left[id(proposal.episode)] = left - 1
        return await self._decide(proposal)

    @override
    async def review(self, proposal: Proposal) -> Decision | None:
        return await self._decide(proposal)

    async def _decide(self, proposal: Proposal) -> Decision | None:
        refusal = ""
        while True:
            answer = await self.ask(proposal, refusal)
            try:
                return self._read(proposal, answer)
            except ConfigError as error:
                refusal = str(error)

    def _read(self, proposal: Proposal, answer: PersonAnswer) -> Decision | None:
        """Return the decision of an answer; None to ask the policy.

        Raises:
            ConfigError: the answer does not suit the turn.
        """
        taken = proposal.reply is None
        if answer.decision == "hand_back":
            if self._alone:
                raise ConfigError("there is no model. Start with --copilot MODEL to let one go on.")
            if not taken:
                raise ConfigError(f"the agent has this turn already. Allowed: {self._allowed(proposal)}.")
            self._turns_left.pop(id(proposal.episode), None)
            return None
        if answer.decision == "end":
            return Decision(Review("ended", self.author, answer.reason[:MAX_REASON]))
        if taken and answer.decision in ("approve", "reject"):
            raise ConfigError(f"you have this turn: there is no proposal. Allowed: {self._allowed(proposal)}.")
        if answer.decision == "approve":
            return Decision(Review("approved", self.author))
        if answer.decision == "reject":
            return Decision(Review("rejected", self.author, answer.reason[:MAX_REASON] or NO_REASON))
        if answer.candidate is not None:
            return self._pick(proposal, answer.candidate)
        if not answer.action:
            needs = "/take needs the action of this turn: /take [turns] action."
            raise ConfigError(needs if answer.decision == "take_over" else "the action is missing. Type the action.")
        reply = proposal.write(answer.action, answer.thought)
        if answer.decision == "take_over":
            self.take_over(proposal.episode, None if answer.turns is None else answer.turns - 1)
        over = taken or answer.decision == "take_over"
        return Decision(Review("taken_over" if over else "edited", self.author), reply, self.author)

    def commands(self, proposal: Proposal) -> tuple[str, ...]:
        """Return the commands that suit a turn, a part of `COMMANDS`."""
        if self._alone:
            return ("end",)
        return ("back", "end") if proposal.reply is None else ("approve", "reject", "take", "end")

    def _allowed(self, proposal: Proposal) -> str:
        return ", ".join(["an action", *(f"/{command}" for command in self.commands(proposal))])

    def candidates(self, proposal: Proposal) -> Sequence[Candidate]:
        """Return the actions that the copilot's samples take at a turn; empty without a copilot or a proposal."""
        return self._copilot.candidates if self._copilot is not None and proposal.reply is not None else ()

    def _pick(self, proposal: Proposal, number: int) -> Decision:
        """Return the decision to play a candidate's own reply, whose author is the policy."""
        candidates = self.candidates(proposal)
        if not number <= len(candidates):
            allowed = f"Allowed: 1 to {len(candidates)}." if candidates else "This turn has no candidates."
            raise ConfigError(f"there is no candidate {number}. {allowed}")
        reply = candidates[number - 1].reply.text
        if proposal.reply is not None and reply == proposal.reply.text:
            return Decision(Review("approved", self.author))
        return Decision(Review("edited", self.author), reply)


def parse_answer(values: Mapping[str, Any]) -> PersonAnswer:
    """Return the answer in JSON values that another process sent.

    Raises:
        ConfigError: they have another form.
    """
    return section("answer", PersonAnswer, values)


def read_line(line: str, suitable: Sequence[str] = COMMANDS) -> PersonAnswer:
    """Return the answer in a line that a person typed: a command that begins with `/`, or another action.

    Commands may be shortened: `/a`, `/r the wrong shop`, `/t 3 click [4]`, `/b`, `/e`.

    Raises:
        ConfigError: the line is empty, its command is unknown, or it is `/help`, which the message answers.
    """
    line = line.strip()
    if not line:
        raise ConfigError("an empty line decides nothing. Type an action, or a command that begins with /.")
    if not line.startswith("/"):
        return PersonAnswer("edit", line)
    name, _, rest = line[1:].partition(" ")
    if name.lower() in ("help", "h", "?"):
        raise ConfigError(f"{explain_commands(suitable)}; or type an action.")
    found = [command for command in COMMANDS if name and command.startswith(name.lower())]
    if len(found) != 1:
        allowed = ", ".join(f"/{command}" for command in (*suitable, "help"))
        raise ConfigError(f"/{name} is no command. Allowed: {allowed}.")
    rest = rest.strip()
    if found == ["take"]:
        number, _, action = rest.partition(" ")
        counted = number.isascii() and number.isdigit() and 1 <= int(number) < MAX_TURNS
        return (
            PersonAnswer("take_over", action.strip(), turns=int(number)) if counted else PersonAnswer("take_over", rest)
        )
    if found == ["approve"]:
        return PersonAnswer("approve")
    if found == ["back"]:
        return PersonAnswer("hand_back")
    return PersonAnswer("end" if found == ["end"] else "reject", reason=rest)


def explain_commands(commands: Sequence[str]) -> str:
    """Return an explanation of commands, in one line."""
    return "; ".join(HELP[command] for command in commands)
