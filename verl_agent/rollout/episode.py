"""The episode loop: an agent, a policy and an environment play one task.

The loop handles messages, not tokens. Training, validation, evaluation and tests share it. It is the only place that
catches the failure of an environment.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Protocol

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.errors import AgentError, EnvError, EnvTimeoutError, describe_exception
from verl_agent.sections import STRICT
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem, Turn

CLOSE_TIMEOUT_S = 5.0
"""Most seconds that an episode waits for its session to close."""


class Policy(Protocol):
    """Author of the replies: a model behind an engine, an endpoint, or a script."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Return the next assistant message.

        If the token budget leaves no room for a reply, return one with `truncated_by` and without tokens.

        Args:
            messages: all messages that the model reads.
        """
        ...


@dataclass(frozen=True, slots=True, config=STRICT)
class EpisodeLimits:
    """Limits of one episode.

    Attributes:
        max_turns: most replies, >= 1.
        timeout_s: most seconds of one call into the environment, > 0; None if the session limits its calls itself, as
            sessions of a pool do.
        retries: further attempts after an environment error, each from the first turn, >= 0.
    """

    max_turns: Annotated[int, Field(ge=1)]
    timeout_s: Annotated[float, Field(gt=0)] | None = 60.0
    retries: Annotated[int, Field(ge=0)] = 0


async def play(item: TaskItem, session: Session, agent: Agent, policy: Policy, limits: EpisodeLimits) -> Episode:
    """Play `item` once and close `session`.

    An environment error ends the episode with `StopReason.ENV_ERROR` and is not raised, so the other episodes of the
    group continue. An error of the agent or the policy is raised.

    Args:
        item: task to play.
        session: fresh session of the item's environment.
        agent: fresh agent that builds the prompt and parses the replies.
        policy: fresh policy that writes the replies.
        limits: limits on turns and seconds.
    """
    episode = Episode(item, limits.max_turns, success_reward=session.success_reward, started_at=time.time())
    started = time.monotonic()
    try:
        async with _env_call("reset", limits.timeout_s):
            prompt = await session.reset(item)
        *first, last = agent.build_prompt(prompt)
        episode.messages += [*first, agent.with_turns_left(last, limits.max_turns)]
        episode.prompt_length = len(episode.messages)
        for _ in range(limits.max_turns):
            if await _play_turn(episode, session, agent, policy, limits.timeout_s):
                break
        else:
            episode.stop = StopReason.TURN_LIMIT
    except EnvError as error:
        episode.stop, episode.error = StopReason.ENV_ERROR, str(error)
    finally:
        with suppress(AgentError):  # the pool cleans up a session that fails to close
            async with _env_call("close", min(limits.timeout_s or CLOSE_TIMEOUT_S, CLOSE_TIMEOUT_S)):
                await session.close()
        episode.seconds = time.monotonic() - started
    return episode


async def _play_turn(episode: Episode, session: Session, agent: Agent, policy: Policy, timeout_s: float | None) -> bool:
    """Play one turn; return True and set `episode.stop` if it ends the episode."""
    asked_at = time.monotonic()
    reply = await policy.reply(agent.visible_messages(episode.messages, episode.prompt_length))
    replied_at = time.monotonic()
    if reply.truncated_by and not reply.tokens:
        episode.stop = reply.truncated_by
        return True
    episode.messages.append({"role": "assistant", "content": reply.text})
    action, step = None if reply.truncated_by else agent.parse_reply(reply.text), None
    try:
        if reply.truncated_by:
            episode.stop = reply.truncated_by
            return True
        if action is None:
            step = StepResult(agent.format_error, info={"invalid_action": 1.0})
        else:
            async with _env_call("step", timeout_s):
                step = await session.step(action)
    finally:
        episode.turns.append(Turn(reply, action, step, replied_at - asked_at, time.monotonic() - replied_at))
    played = len(episode.turns)
    observed = agent.observe(step, action, played)
    episode.messages.append(agent.with_turns_left(observed, episode.max_turns - played))
    if step.terminated:
        episode.stop = StopReason.TERMINATED
    return step.terminated


@asynccontextmanager
async def _env_call(name: str, timeout_s: float | None) -> AsyncIterator[None]:
    """Limit the time of one call into an environment, and raise an EnvError for any exception of its own.

    Args:
        name: name of the call, for messages.
        timeout_s: most seconds of the call, or None for no limit.

    Raises:
        EnvTimeoutError: the call exceeds the limit.
        EnvError: the call raises an exception that is not an `AgentError`.
    """
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except AgentError:
        raise
    except Exception as error:  # boundary: adapters may raise anything
        if limit.expired():
            raise EnvTimeoutError(f"{name} took more than {timeout_s:g} s") from error
        raise EnvError(f"{name} failed: {describe_exception(error)}") from error


async def play_until_valid(
    item: TaskItem,
    new_session: Callable[[], Session],
    new_agent: Callable[[], Agent],
    new_policy: Callable[[], Policy],
    limits: EpisodeLimits,
) -> list[Episode]:
    """Play `item` until an attempt has no environment error, at most `1 + limits.retries` times.

    Every attempt starts at the first turn with a fresh session, agent and policy.

    Returns:
        All attempts. Only the last one can be valid.
    """
    attempts: list[Episode] = []
    while len(attempts) <= limits.retries:
        attempts.append(await play(item, new_session(), new_agent(), new_policy(), limits))
        if attempts[-1].valid:
            break
    return attempts
