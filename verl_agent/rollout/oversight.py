"""Oversight of an episode: decisions of rules and people between a proposed action and the environment."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from verl_agent.agents.base import Agent
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError
from verl_agent.types import Author, DemoAction, Episode, Reply, Review

REJECTED = "The action was not carried out: "
"""Beginning of the observation of a rejected action; the reason follows."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Turn whose action has not reached the environment.

    Attributes:
        episode: episode up to the turn; only read.
        agent: agent of the episode.
        reply: reply of the policy; None if the policy is not asked for this turn.
        action: action in the reply; None if it has none.
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

        Args:
            action: text that the environment takes.
            thought: reason for the action; may be empty.

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
        review: entry for the record.
        reply: reply to play instead of the policy's; None for the policy's own.
        author: author of `reply`.
    """

    review: Review
    reply: str | None = None
    author: Author = "policy"


class Overseer:
    """Hook of the episode loop: sees every turn before its action is carried out. This one lets everything pass.

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
