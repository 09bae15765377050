"""The interface of overseers, who decide on each action of an episode before it reaches the environment."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, cast

from pydantic import Field
from pydantic.dataclasses import dataclass as settings_class
from typing_extensions import override

from verl_agent.agents.base import Agent, first_action
from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import Session
from verl_agent.errors import ConfigError, OperatorEndError
from verl_agent.rollout.actions import ReplySession, joined, rejection
from verl_agent.rollout.candidates import Candidate, CandidatePolicy
from verl_agent.rollout.policy import Policy
from verl_agent.sections import STRICT
from verl_agent.types import PEOPLE, Action, Author, CallResult, DemoAction, Episode, Message, Reply, Review, StepResult

ENDED = "a person ended the episode."
MAX_REASON = 500
"""Most characters of the reason for a decision."""


@settings_class(frozen=True, config=STRICT)
class Decision:
    """Decision of an overseer on a turn: a rule's, a person's, or that of an overseer of another package."""

    decision: Literal["approve", "edit", "take_over", "reject", "hand_back", "end"]
    """`approve` carries the action out. `edit` plays `action` instead. `reject` tells the policy `reason`. `end` ends
    the episode. Of people only: `take_over` does what `edit` does and takes the next turns too, `hand_back` asks the
    policy for this turn afterwards."""
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
    by: str = "overseer"
    """Author of the decision in the record: `rule`, `person`, `oracle`, or the name of another overseer. Rules and
    people set it."""


class NobodyElse(Policy):
    """Policy of an episode in which an overseer has every turn; it is never asked."""

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        raise AssertionError("the person has every turn.")


@dataclass(frozen=True, slots=True)
class Proposal:
    """Turn whose action has not reached the environment.

    Attributes:
        reply: reply of the policy; None before the policy is asked.
        actions: actions of the reply in order; several if it calls several functions, empty without an action.
        candidates: actions that the samples of a copilot take at this turn; empty without a copilot or a reply.
        alone: True if the episode has no policy, so that every turn is the overseer's.
        timeout_s: seconds after which the action is rejected without a decision; None for no limit.
        on_shown: a person's overseer calls it when the person sees the question, where `timeout_s` begins anew.
        asked_by: rule that asks, in words; "" if no rule does.
    """

    episode: Episode
    agent: Agent
    reply: Reply | None = None
    actions: tuple[Action, ...] = ()
    candidates: Sequence[Candidate] = ()
    alone: bool = False
    timeout_s: float | None = None
    on_shown: Callable[[], object] = lambda: None
    asked_by: str = ""

    @property
    def action(self) -> str | None:
        """Actions of the reply as text, one a line; None without an action."""
        return "\n".join(map(str, self.actions)) if self.actions else None

    @property
    def observation(self) -> str:
        """Message that the turn answers."""
        return self.episode.messages[-1]["content"]

    @property
    def env_observation(self) -> str:
        """Last message that shows the environment's state; no rejection or format error has changed it since."""
        turns, first = self.episode.turns, self.episode.prompt_length - 1
        carried_out = [number for number, turn in enumerate(turns, start=1) if turn.carried_out]
        return self.episode.messages[first + 2 * max(carried_out, default=0)]["content"]

    def write(self, action: str, thought: str = "") -> str:
        """Return the reply with another action, in the form in which the agent's own replies are.

        Raises:
            ConfigError: no reply of the agent contains this action.
        """
        played = [DemoAction(turn.action) for turn in self.episode.turns if turn.action]
        wanted = self.agent.action_format.from_text(action)
        text = self.agent.render_demo([*played, DemoAction(wanted, thought)], len(played))
        if not action or self.agent.parse_reply(text) != wanted:
            raise ConfigError(
                f"the action {shorten(action)!r} cannot be written as a reply: the agent would read "
                f"{self.agent.parse_reply(text)!r}. Write one action in the syntax of the environment. The format is: "
                f"{self.agent.action_format.template}"
            )
        return text

    def apply(self, decision: Decision) -> Reply:
        """Return the reply that a decision plays, with its review.

        Raises:
            ConfigError: the decision does not suit the turn.
        """
        name, by = decision.decision, decision.by
        reply = self.reply or Reply("")
        if name in ("approve", "reject") and self.reply is None:
            raise ConfigError(f"{name} needs a proposal, and the policy was not asked. Allowed: edit, end.")
        if name in ("approve", "reject", "end"):
            reviewed = {"approve": "approved", "reject": "rejected", "end": "ended"}[name]
            return replace(reply, review=Review(reviewed, by, decision.reason))  # type: ignore[arg-type]  # one of the literals
        if decision.candidate is not None:
            if decision.candidate > len(self.candidates):
                allowed = f"1 to {len(self.candidates)}." if self.candidates else ""
                rest = f"Allowed: {allowed}" if allowed else "This turn has no candidates."
                raise ConfigError(f"there is no candidate {decision.candidate}. {rest}")
            text, author = self.candidates[decision.candidate - 1].reply.text, "policy"
            if text == reply.text:
                return replace(reply, review=Review("approved", by))
        elif not decision.action:
            raise ConfigError("the action is missing. Type the action.")
        else:
            text, author = self.write(decision.action, decision.thought), by if by in PEOPLE else "overseer"
        taken = self.reply is None or name == "take_over"
        return replace(
            reply,
            text=text,
            author=cast(Author, author),
            proposed=None if self.reply is None else reply.text,
            review=Review("taken_over" if taken else "edited", by),
        )


class Overseer:
    """Sees every turn of an episode before its action is carried out. This one lets everything pass.

    One overseer may serve many episodes at once. A package registers one for the rules of approval policies
    (`by: my_overseer`) with an entry point:

        entry_points={"verl_agent.overseers": ["my_overseer = my_package.overseer:MyOverseer"]}
    """

    async def decide(self, proposal: Proposal) -> Decision | None:
        """Return the decision on a turn, or None to let it pass without an entry in the record.

        Called before the policy is asked, without a `proposal.reply`, where a decision plays the turn in its place,
        and then on its reply. A rule asks about replies only, and needs a decision.
        """
        return None

    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        """Follow an episode while the block runs; wait before it for as long as the episode may not begin.

        Raises:
            OperatorEndError: a person ends the episode, also in the middle of a call.
        """
        yield

    @asynccontextmanager
    async def oversee(
        self, episode: Episode, agent: Agent, policy: Policy, session: Session
    ) -> AsyncIterator[tuple[Policy, ReplySession]]:
        """Yield policy and session of an episode whose actions this overseer decides on."""
        async with self.watch(episode):
            overseen = OverseenPolicy(policy, self, episode, agent)
            yield overseen, OverseenSession(session, overseen)


@dataclass(slots=True)
class OverseenPolicy(Policy):
    """Policy of one episode whose replies an overseer sees, edits or writes. Its decision travels on the reply."""

    policy: Policy
    overseer: Overseer
    episode: Episode
    agent: Agent
    review: Review | None = field(default=None, init=False)
    """Review of the last reply."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Let the overseer act or the policy reply, then let the overseer decide."""
        alone = isinstance(self.policy, NobodyElse)
        reply, decided, held_s = await self._decide(Proposal(self.episode, self.agent, alone=alone))
        if not decided:
            reply = await self.policy.reply(messages)
            if not reply.truncated_by:
                read = (one.action for one in self.agent.read(reply))
                actions = tuple(action for action in read if action is not None)
                candidates = self.policy.candidates if isinstance(self.policy, CandidatePolicy) else ()
                proposal = Proposal(self.episode, self.agent, reply, actions, candidates)
                reply, _, seconds = await self._decide(proposal)
                held_s += seconds
        elif reply.review is not None and reply.review.decision == "ended":
            raise OperatorEndError(reply.review.reason or ENDED)
        self.review = reply.review
        return replace(reply, held_s=held_s)

    async def _decide(self, proposal: Proposal) -> tuple[Reply, bool, float]:
        """Return the reply that is played, whether the overseer decided, and the seconds that this took."""
        began_at = time.monotonic()
        decision = await self.overseer.decide(proposal)
        seconds = time.monotonic() - began_at
        plain = replace(proposal.reply or Reply(""), author="policy", proposed=None, review=None)
        if decision is None:
            return plain, False, seconds
        reply = replace(proposal, reply=proposal.reply and plain).apply(decision)
        review = reply.review and replace(reply.review, seconds=seconds)
        return replace(reply, review=review), True, seconds


class OverseenSession(ReplySession):
    """Session of one episode that carries out nothing that its overseer has decided against."""

    def __init__(self, session: Session, policy: OverseenPolicy) -> None:
        super().__init__(session)
        self._policy = policy

    @override
    async def step(self, results: list[CallResult]) -> StepResult:
        """Carry out the actions of a reply, unless it was decided against.

        Raises:
            OperatorEndError: a person ends the episode with this turn.
        """
        review = self._policy.review
        if review is not None and review.decision == "ended":
            raise OperatorEndError(review.reason or ENDED)
        if review is None or review.decision != "rejected":
            return await super().step(results)
        rejected = rejection(review.reason)
        if first_action(results) is None:
            rejected = replace(rejected, info={**rejected.info, "invalid_action": 1.0})
        results[:] = [
            replace(result, step=rejected if at == 0 else replace(rejected, info={}))
            for at, result in enumerate(results)
        ]
        return joined(results)
