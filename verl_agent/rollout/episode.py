"""The episode loop: an agent, a policy and an environment play one task.

The loop handles messages, not tokens. Training, validation, evaluation and tests share it. It is the only place where
an error ends an episode. Overseers wrap policy and session (`Oversight`), and retries wrap the session.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated, Protocol, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.agents.base import Agent, first_action
from verl_agent.envs.session import Session
from verl_agent.envs.settings import OnActionError
from verl_agent.errors import EpisodeEndError
from verl_agent.rollout.actions import ReplySession
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.retrying import with_retries
from verl_agent.rollout.sessions import ReplayingSession
from verl_agent.sections import STRICT
from verl_agent.types import CallResult, Episode, StopReason, TaskItem, Turn

AtLimit: TypeAlias = Callable[[Episode], Awaitable[int]]


class Oversight(Protocol):
    """Wrapper of policy and session of an episode; see `verl_agent.oversight.base.Overseer`."""

    def oversee(
        self, episode: Episode, agent: Agent, policy: Policy, session: Session
    ) -> AbstractAsyncContextManager[tuple[Policy, ReplySession]]:
        """Return a context with the wrapped policy and session, in which the episode is played."""
        ...


@dataclass(frozen=True, slots=True, config=STRICT)
class EpisodeLimits:
    """Limits of one episode."""

    max_turns: Annotated[int, Field(ge=1)]
    """Most replies, >= 1."""
    timeout_s: Annotated[float, Field(gt=0)] | None = 60.0
    """Most seconds of one call into the environment, > 0; None if the session limits its calls itself, as sessions of a
    pool do."""
    retries: Annotated[int, Field(ge=0)] = 0
    """Further tries of a call after an environment error, >= 0, see `ReplayingSession`; where the episode cannot be
    replayed, further attempts at it."""
    on_action_error: OnActionError = "count"
    """See `EnvSettings`."""


async def play_episode(
    item: TaskItem,
    session: Session,
    agent: Agent,
    policy: Policy,
    limits: EpisodeLimits,
    overseer: Oversight | None = None,
) -> Episode:
    """Play `item` once, without retries, and close `session`. `Player` plays with retries.

    An `EpisodeEndError`, such as an environment error, ends the episode with its stop reason and is not raised, so the
    other episodes of the group continue. Any other error of the agent or the policy is raised.

    Args:
        item: task to play.
        session: fresh session of the item's environment.
        agent: fresh agent that builds the prompt and parses the replies.
        policy: fresh policy that writes the replies.
        limits: limits on turns and seconds.
        overseer: sees each turn before its action is carried out; None to carry out everything.
    """
    replaying = ReplayingSession(lambda: with_retries(lambda: session, agent), limits.timeout_s)
    return await play_once(item, replaying, agent, policy, limits.max_turns, overseer)


async def play_once(
    item: TaskItem,
    session: ReplayingSession,
    agent: Agent,
    policy: Policy,
    max_turns: int,
    overseer: Oversight | None = None,
    at_limit: AtLimit | None = None,
) -> Episode:
    """Play one attempt at an episode; see `play_episode`, and `Player.play` for `at_limit`."""
    episode = Episode(item, max_turns, success_reward=session.success_reward, started_at=time.time())
    began_at = time.monotonic()
    plain = nullcontext((policy, ReplySession(session)))
    overseen = plain if overseer is None else overseer.oversee(episode, agent, policy, session)
    try:
        async with overseen as (policy, replies):
            *first, last = agent.build_prompt(await session.reset(item))
            episode.messages += [*first, agent.with_turns_left(last, max_turns)]
            episode.prompt_length = len(episode.messages)
            stop = None
            while stop is None:
                stop = await _play_turn(episode, replies, agent, policy)
                if stop is StopReason.TURN_LIMIT and at_limit is not None:
                    episode.max_turns = await at_limit(episode)
                    stop = stop if episode.max_turns <= len(episode.turns) else None
            episode.stop = stop
    except EpisodeEndError as error:
        episode.stop, episode.error = StopReason(error.stop), str(error)
    finally:
        await session.close()
        episode.replays = session.errors
        episode.seconds = time.monotonic() - began_at
    return episode


async def _play_turn(episode: Episode, session: ReplySession, agent: Agent, policy: Policy) -> StopReason | None:
    """Play one turn; return the reason for which the episode ends with it, or None."""
    asked_at = time.monotonic()
    reply = await policy.reply(agent.visible_messages(episode.messages, episode.prompt_length))
    replied_at, step = time.monotonic(), None
    results: list[CallResult] = []
    if reply.truncated_by and not reply.tokens:
        return reply.truncated_by
    episode.messages.append({"role": "assistant", "content": reply.text})
    try:
        if not reply.truncated_by:
            results += agent.read(reply)
            step = await session.step(results)
    finally:
        generate_s = replied_at - asked_at - reply.paused_s - reply.held_s
        calls = tuple(results) if len(results) > 1 or any(one.errors for one in results) else ()
        env_s, action = time.monotonic() - replied_at, first_action(results)
        episode.turns.append(Turn(reply, action, step, generate_s, env_s, calls))
    if step is None:
        return reply.truncated_by
    observed = agent.observe_calls(results, step, len(episode.turns))
    left = episode.max_turns - len(episode.turns)
    episode.messages.append(agent.with_turns_left(observed, left))
    if step.terminated:
        return StopReason.TERMINATED
    return None if left else StopReason.TURN_LIMIT
