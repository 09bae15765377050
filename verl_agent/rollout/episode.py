"""The episode loop: an agent, a policy and an environment play one task.

The loop handles messages, not tokens. Training, validation, evaluation and tests share it. It is the only place where
an error ends an episode. Overseers wrap the policy (`OverseenPolicy`), and retries wrap the session.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.envs.settings import OnActionError
from verl_agent.errors import EpisodeEndError
from verl_agent.rollout.oversight import OverseenPolicy, Overseer, carry_out
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.retrying import with_retries
from verl_agent.rollout.sessions import ReplayingSession
from verl_agent.sections import STRICT
from verl_agent.types import Episode, StopReason, TaskItem, Turn


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
    overseer: Overseer | None = None,
) -> Episode:
    """Play `item` once, without retries, and close `session`.

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
    once = replace(limits, retries=0)
    return (await play_until_valid(item, lambda: session, lambda: agent, lambda: policy, once, overseer))[0]


async def play_until_valid(
    item: TaskItem,
    new_session: Callable[[], Session],
    new_agent: Callable[[], Agent],
    new_policy: Callable[[], Policy],
    limits: EpisodeLimits,
    overseer: Overseer | None = None,
) -> list[Episode]:
    """Play `item` until an attempt has no environment error.

    Where the environment is deterministic, an attempt continues after an error on a fresh session, with the replies
    that it has (`ReplayingSession`). If that is not possible or does not help, the next one of at most
    `1 + limits.retries` attempts starts at the first turn with a fresh session, agent and policy. Not tried again are
    an attempt whose last action is the reason for the error, a prompt that exceeds its budget, and an episode that a
    person ended.

    Args: see `play_episode`; the factories are called for each attempt.

    Returns:
        All attempts. Only the last one can be valid.
    """
    attempts: list[Episode] = []
    for _ in range(1 + limits.retries):
        agent = new_agent()
        factory, counted = partial(with_retries, new_session, agent), limits.on_action_error == "count"
        session = ReplayingSession(factory, limits.timeout_s, limits.retries, counted)
        attempts.append(await _play(item, session, agent, new_policy(), limits.max_turns, overseer))
        attempts[-1].replays = session.errors
        if attempts[-1].stop is not StopReason.ENV_ERROR or session.blames_action:
            break
    return attempts


async def _play(
    item: TaskItem, session: Session, agent: Agent, policy: Policy, max_turns: int, overseer: Overseer | None
) -> Episode:
    episode = Episode(item, max_turns, success_reward=session.success_reward, started_at=time.time())
    began_at = time.monotonic()
    if overseer is not None:
        policy = OverseenPolicy(policy, overseer, episode, agent, session.keep_alive)
    try:
        async with (overseer or Overseer()).watch(episode):
            *first, last = agent.build_prompt(await session.reset(item))
            episode.messages += [*first, agent.with_turns_left(last, max_turns)]
            episode.prompt_length = len(episode.messages)
            stop = None
            while stop is None:
                stop = await _play_turn(episode, session, agent, policy)
            episode.stop = stop
    except EpisodeEndError as error:
        episode.stop, episode.error = StopReason(error.stop), str(error)
    finally:
        await session.close()
        episode.seconds = time.monotonic() - began_at
    return episode


async def _play_turn(episode: Episode, session: Session, agent: Agent, policy: Policy) -> StopReason | None:
    """Play one turn; return the reason for which the episode ends with it, or None."""
    asked_at = time.monotonic()
    reply = await policy.reply(agent.visible_messages(episode.messages, episode.prompt_length))
    replied_at, action, step = time.monotonic(), None, None
    if reply.truncated_by and not reply.tokens:
        return reply.truncated_by
    episode.messages.append({"role": "assistant", "content": reply.text})
    try:
        if not reply.truncated_by:
            action = agent.parse_reply(reply.text)
            step = await carry_out(reply, action, agent, session)
    finally:
        generate_s = replied_at - asked_at - reply.paused_s - reply.held_s
        episode.turns.append(Turn(reply, action, step, generate_s, time.monotonic() - replied_at))
    if step is None:
        return reply.truncated_by
    observed, left = agent.observe(step, action, len(episode.turns)), episode.max_turns - len(episode.turns)
    episode.messages.append(agent.with_turns_left(observed, left))
    if step.terminated:
        return StopReason.TERMINATED
    return None if left else StopReason.TURN_LIMIT
