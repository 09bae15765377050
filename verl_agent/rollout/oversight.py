"""Oversight of an episode: decisions of rules and people between a proposed action and the environment."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from verl_agent.agents.base import Agent
from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import Session
from verl_agent.errors import ConfigError, OperatorEndError
from verl_agent.rollout.policy import Policy
from verl_agent.types import Author, DemoAction, Episode, Message, Reply, Review, StepResult

ENDED = "a person ended the episode."
REJECTED = "The action was not carried out: "
"""Beginning of the observation of a rejected action; the reason follows."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Turn whose action has not reached the environment.

    Attributes:
        reply: reply of the policy; None if the policy is not asked for this turn.
        timeout_s: seconds after which the action is rejected if a person does not decide; None for no limit.
    """

    episode: Episode
    agent: Agent
    reply: Reply | None = None
    action: str | None = None
    timeout_s: float | None = None

    @property
    def observation(self) -> str:
        """Message that the turn answers."""
        return self.episode.messages[-1]["content"]

    @property
    def instructions(self) -> str:
        """Messages before the first observation, such as the rules and the format of replies; empty after turn 1."""
        first = self.episode.messages[: 0 if self.episode.turns else self.episode.prompt_length - 1]
        return "\n\n".join(message["content"].strip() for message in first)

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
        played = [DemoAction(turn.action or "") for turn in self.episode.turns]
        text = self.agent.render_demo([*played, DemoAction(action, thought)], len(played))
        if not action or self.agent.parse_reply(text) != action:
            raise ConfigError(
                f"the action {shorten(action)!r} cannot be written as a reply: the agent would read "
                f"{self.agent.parse_reply(text)!r}. Write one action in the syntax of the environment."
            )
        return text


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision on a proposal.

    Attributes:
        reply: reply to play instead of the policy's; None for the policy's own.
    """

    review: Review
    reply: str | None = None
    author: Author = "policy"


class Overseer:
    """Sees every turn of an episode before its action is carried out. This one lets everything pass.

    One overseer may serve many episodes at once.
    """

    keep_alive_s: ClassVar[float] = 10.0
    """Seconds between two calls that keep the session of a waiting episode open, shorter than `env.hosts.idle_s`."""

    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        """Follow an episode while the block runs; wait before it for as long as the episode may not begin.

        Raises:
            OperatorEndError: a person ends the episode, also in the middle of a call.
        """
        yield

    async def act(self, proposal: Proposal) -> Decision | None:
        """Return the turn of a person who has taken over; None to ask the policy."""
        return None

    async def review(self, proposal: Proposal) -> Decision | None:
        """Decide on a reply of the policy; None lets it pass and leaves no entry in the record."""
        return None


class OverseenPolicy:
    """Policy of one episode whose replies an overseer sees, edits or writes. Its decision travels on the reply.

    Args:
        keep_alive: keeps the session open while the overseer decides.
    """

    def __init__(
        self,
        policy: Policy,
        overseer: Overseer,
        episode: Episode,
        agent: Agent,
        keep_alive: Callable[[], Awaitable[None]],
    ) -> None:
        self._policy, self._overseer, self._episode, self._agent = policy, overseer, episode, agent
        self._keep_alive = keep_alive
        self._held_s = 0.0

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Let the overseer act or the policy reply, then let the overseer decide.

        Raises:
            OperatorEndError: a person who has taken this turn ends the episode.
        """
        self._held_s, proposed = 0.0, None
        reply, decision = Reply(""), await self._decide(self._overseer.act(Proposal(self._episode, self._agent)))
        if decision is None:
            reply = await self._policy.reply(messages)
            if not reply.truncated_by:
                proposal = Proposal(self._episode, self._agent, reply, self._agent.parse_reply(reply.text))
                decision, proposed = await self._decide(self._overseer.review(proposal)), reply.text
        elif decision.reply is None:
            raise OperatorEndError(decision.review.reason or ENDED)
        reply = replace(reply, held_s=self._held_s, author="policy", proposed=None, review=None)
        if decision is None:
            return reply
        reply = replace(reply, author=decision.author, review=decision.review)
        return reply if decision.reply is None else replace(reply, text=decision.reply, proposed=proposed)

    async def _decide(self, deciding: Awaitable[Decision | None]) -> Decision | None:
        """Return a decision with the time that it took, and keep the session open meanwhile."""
        began_at, keeping = time.monotonic(), asyncio.create_task(self._keep_open())
        try:
            decision = await deciding
        finally:
            keeping.cancel()
        seconds = time.monotonic() - began_at
        self._held_s += seconds
        return decision and replace(decision, review=replace(decision.review, seconds=seconds))

    async def _keep_open(self) -> None:
        while True:
            await asyncio.sleep(self._overseer.keep_alive_s)
            await self._keep_alive()


async def carry_out(reply: Reply, action: str | None, agent: Agent, session: Session) -> StepResult:
    """Return the answer to a reply: that of the session, unless the reply has no action or was decided against.

    Raises:
        OperatorEndError: a person ends the episode with this turn.
    """
    review = reply.review
    if review is not None and review.decision == "ended":
        raise OperatorEndError(review.reason or ENDED)
    invalid = {} if action is not None else {"invalid_action": 1.0}
    if review is not None and review.decision == "rejected":
        return StepResult(REJECTED + review.reason, info={"rejected_action": 1.0, **invalid})
    return StepResult(agent.format_error, info=invalid) if action is None else await session.step(action)
