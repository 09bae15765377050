"""The player: everything that plays tasks of one environment, shared by all commands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from verl_agent.agents.base import Agent
from verl_agent.envs.judge.judge import Judge
from verl_agent.envs.session import Session
from verl_agent.rollout.episode import AtLimit, Course, EpisodeLimits, Oversight, play_once
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.retrying import with_retries
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.sessions import RecoveringSession
from verl_agent.types import Episode, StopReason, TaskItem

PolicyT = TypeVar("PolicyT", bound=Policy)


@dataclass(frozen=True)
class Played(Generic[PolicyT]):
    """All attempts at an episode, of which only the last one can be valid, with its agent and its policy."""

    attempts: list[Episode]
    agent: Agent
    policy: PolicyT

    @property
    def episode(self) -> Episode:
        """The last attempt."""
        return self.attempts[-1]


@dataclass(frozen=True)
class Player(Generic[PolicyT]):
    """Plays tasks of one environment, each until an attempt has no environment error.

    Where the environment is deterministic, an attempt continues after an error on a fresh session, with the replies
    that it has (`RecoveringSession`). If that is not possible or does not help, the next one of at most
    `1 + limits.retries` attempts starts at the first turn with a fresh session, agent and policy. Not tried again are
    an attempt whose last action is the reason for the error, a prompt that exceeds its budget, and an episode that a
    person ended.

    Attributes:
        new_agent: factory of the agent of an attempt.
        new_session: factory of sessions; a replay takes another one.
        new_policy: factory of the policy of an attempt, from the task and the attempt's seed.
        limits: limits of each episode.
        overseer: sees each turn before its action is carried out; None to carry out everything.
        judge: grades the last attempt; None for the environment's reward alone.
    """

    new_agent: Callable[[], Agent]
    new_session: Callable[[], Session]
    new_policy: Callable[[TaskItem, EpisodeSeed], PolicyT]
    limits: EpisodeLimits
    overseer: Oversight | None = None
    judge: Judge | None = None

    async def play(
        self, item: TaskItem, seed: EpisodeSeed, at_limit: AtLimit | None = None, given: Sequence[str] = ()
    ) -> Played[PolicyT]:
        """Play a task. An error of the environment is in the episodes; any other one is raised.

        Args:
            seed: seed of the first attempt; the others have its further `attempt`s.
            at_limit: see `Course`; so is `given`.
        """
        course = Course(self.limits.max_turns, at_limit, given)
        attempts: list[Episode] = []
        while True:
            agent, policy = self.new_agent(), self.new_policy(item, replace(seed, attempt=len(attempts) + 1))
            session = self.replaying(agent)
            attempts.append(await play_once(item, session, agent, policy, course, self.overseer))
            failed = attempts[-1].stop is StopReason.ENV_ERROR and not session.blames_action
            if not failed or len(attempts) > self.limits.retries:
                if self.judge is not None:
                    await self.judge.judge(attempts[-1])
                return Played(attempts, agent, policy)

    def replaying(self, agent: Agent | None = None) -> RecoveringSession:
        """Return a new session with the limits and the retries of this player.

        Args:
            agent: agent that may ask for further attempts at a failed task; None for none.
        """
        new_session = self.new_session if agent is None else partial(with_retries, self.new_session, agent)
        return RecoveringSession(
            new_session, self.limits.timeout_s, self.limits.retries, self.limits.on_action_error == "count"
        )
