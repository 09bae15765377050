"""The episode loop: an agent, a policy and an environment play one task.

The loop handles messages, not tokens. Training, validation, evaluation and tests share it. It is the only place where
the failure of an environment ends an episode.
"""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.errors import EnvError, OverlongPromptError
from verl_agent.rollout.sessions import GuardedSession, ReplayingSession
from verl_agent.sections import STRICT
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem, Turn


class Policy(Protocol):
    """Author of the replies: a model behind an engine, an endpoint, or a script."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Return the next assistant message.

        If the token budget leaves no room for a reply, return one with `truncated_by` and without tokens.

        Args:
            messages: all messages that the model reads.

        Raises:
            OverlongPromptError: the prompt of the episode exceeds its budget.
        """
        ...


@dataclass(frozen=True, slots=True, config=STRICT)
class EpisodeLimits:
    """Limits of one episode.

    Attributes:
        max_turns: most replies, >= 1.
        timeout_s: most seconds of one call into the environment, > 0; None if the session limits its calls itself, as
            sessions of a pool do.
        retries: further sessions after an environment error, >= 0. Each one repeats the failed step, see
            `ReplayingSession`, or begins the next attempt at the episode.
    """

    max_turns: Annotated[int, Field(ge=1)]
    timeout_s: Annotated[float, Field(gt=0)] | None = 60.0
    retries: Annotated[int, Field(ge=0)] = 0


async def play(item: TaskItem, session: Session, agent: Agent, policy: Policy, limits: EpisodeLimits) -> Episode:
    """Play `item` once and close `session`.

    An environment error ends the episode with `StopReason.ENV_ERROR` and is not raised, so the other episodes of the
    group continue; a prompt that exceeds its budget ends it with `StopReason.OVERLONG_PROMPT`. Any other error of the
    agent or the policy is raised.

    Args:
        item: task to play.
        session: fresh session of the item's environment.
        agent: fresh agent that builds the prompt and parses the replies.
        policy: fresh policy that writes the replies.
        limits: limits on turns and seconds.
    """
    return await _play(item, GuardedSession(session, limits.timeout_s), agent, policy, limits.max_turns)


async def _play(item: TaskItem, session: Session, agent: Agent, policy: Policy, max_turns: int) -> Episode:
    """See `play`; the session limits its calls and raises no other exception than `AgentError`."""
    episode = Episode(item, max_turns, success_reward=session.success_reward, started_at=time.time())
    started = time.monotonic()
    try:
        prompt = await session.reset(item)
        *first, last = agent.build_prompt(prompt)
        episode.messages += [*first, agent.with_turns_left(last, max_turns)]
        episode.prompt_length = len(episode.messages)
        for _ in range(max_turns):
            if await _play_turn(episode, session, agent, policy):
                break
        else:
            episode.stop = StopReason.TURN_LIMIT
    except OverlongPromptError as error:
        episode.stop, episode.error = StopReason.OVERLONG_PROMPT, str(error)
    except EnvError as error:
        episode.stop, episode.error = StopReason.ENV_ERROR, str(error)
    finally:
        await session.close()
        episode.seconds = time.monotonic() - started
    return episode


async def _play_turn(episode: Episode, session: Session, agent: Agent, policy: Policy) -> bool:
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
            step = await session.step(action)
    finally:
        episode.turns.append(Turn(reply, action, step, replied_at - asked_at, time.monotonic() - replied_at))
    played = len(episode.turns)
    observed = agent.observe(step, action, played)
    episode.messages.append(agent.with_turns_left(observed, episode.max_turns - played))
    if step.terminated:
        episode.stop = StopReason.TERMINATED
    return step.terminated


async def play_until_valid(
    item: TaskItem,
    new_session: Callable[[], Session],
    new_agent: Callable[[], Agent],
    new_policy: Callable[[], Policy],
    limits: EpisodeLimits,
) -> list[Episode]:
    """Play `item` until an attempt has no environment error, in at most `1 + limits.retries` sessions.

    Where the environment is deterministic, an attempt continues after an error on a fresh session, with the replies
    that it has (`ReplayingSession`). Otherwise the next attempt starts at the first turn with a fresh session, agent
    and policy. A prompt that exceeds its budget is not tried again.

    Returns:
        All attempts. Only the last one can be valid.
    """
    attempts: list[Episode] = []
    left = limits.retries
    while True:
        session = ReplayingSession(new_session, limits.timeout_s, most=left)
        attempts.append(await _play(item, session, new_agent(), new_policy(), limits.max_turns))
        attempts[-1].replays = session.errors
        left -= len(session.errors) + 1
        if attempts[-1].stop is not StopReason.ENV_ERROR or left < 0:
            return attempts
