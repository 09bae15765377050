"""Play one episode: the only loop, and the only place where an environment's failure is caught.

Knows messages, not tokens. The same loop serves training, validation, evaluation and tests.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.errors import AgentError, EnvError, EnvTimeoutError
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem, Turn

CLOSE_TIMEOUT_S = 5.0
"""Seconds that an episode waits for its environment to close; one that hangs would cost its time limit twice."""


class Policy(Protocol):
    """What plays: a model behind an engine, an endpoint, or a script."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """The next assistant message; without tokens and with `cut` set if the budget leaves no room for one."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Bounds of one episode.

    Attributes:
        max_turns: assistant messages allowed, >= 1.
        timeout_s: seconds that one call into the environment may take; None where it bounds them itself, as a
            session of a pool does.
        retries: further tries, each from the first turn, after the environment failed.
    """

    max_turns: int
    timeout_s: float | None = 60.0
    retries: int = 0


@asynccontextmanager
async def env_call(what: str, timeout_s: float | None) -> AsyncIterator[None]:
    """Bound one call into an adapter in time, and turn whatever escapes it into an EnvError."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except AgentError:
        raise
    except Exception as error:
        if limit.expired():
            raise EnvTimeoutError(f"{what} took more than {timeout_s:g} s") from error
        raise EnvError(f"{what} failed: {type(error).__name__}: {error}") from error


async def play(item: TaskItem, session: Session, agent: Agent, policy: Policy, limits: EpisodeLimits) -> Episode:
    """Play `item` once, from reset to its end, and close `session`.

    A failing environment ends this episode with `StopReason.ENV_ERROR`; it never raises, so the
    other episodes of the group go on. A failing policy does raise: that is our bug.

    Args:
        item: the task.
        session: a fresh session.
        agent: what words are put around it, fresh for this episode.
        policy: what is trained or evaluated, fresh for this episode.
        limits: turns and seconds.
    """
    episode = Episode(item, limits.max_turns, success_reward=session.success_reward, started_at=time.time())
    started = time.monotonic()
    try:
        async with env_call("reset", limits.timeout_s):
            prompt = await session.reset(item)
        episode.messages += agent.build_prompt(prompt)
        episode.prompt_length = len(episode.messages)
        for _ in range(limits.max_turns):
            if await _turn(episode, session, agent, policy, limits.timeout_s):
                break
        else:
            episode.stop = StopReason.TURN_LIMIT
    except EnvError as error:
        episode.stop, episode.error = StopReason.ENV_ERROR, str(error)
    finally:
        with suppress(AgentError):  # an environment that cannot close is its host's to clean up
            async with env_call("close", min(limits.timeout_s or CLOSE_TIMEOUT_S, CLOSE_TIMEOUT_S)):
                await session.close()
        episode.seconds = time.monotonic() - started
    return episode


async def _turn(episode: Episode, session: Session, agent: Agent, policy: Policy, timeout_s: float | None) -> bool:
    """Play one turn; returns whether the episode has ended, with its reason set."""
    asked = time.monotonic()
    reply = await policy.reply(agent.visible_messages(episode.messages, episode.prompt_length))
    answered = time.monotonic()
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
            async with env_call("step", timeout_s):
                step = await session.step(action)
    finally:
        episode.turns.append(Turn(reply, action, step, answered - asked, time.monotonic() - answered))
    episode.messages.append(agent.observe(step, action, len(episode.turns)))
    if step.terminated:
        episode.stop = StopReason.TERMINATED
    return step.terminated


async def play_until_valid(
    item: TaskItem,
    new_env: Callable[[], Session],
    new_agent: Callable[[], Agent],
    new_policy: Callable[[], Policy],
    limits: EpisodeLimits,
) -> list[Episode]:
    """Play `item` until the environment does its part, at most `1 + limits.retries` times.

    Every try starts from the first turn with a fresh environment, agent and policy.

    Returns:
        All tries; only the last one can be sound.
    """
    tries: list[Episode] = []
    while len(tries) <= limits.retries:
        tries.append(await play(item, new_env(), new_agent(), new_policy(), limits))
        if tries[-1].valid:
            break
    return tries
