"""The episode loop: an agent, a policy and an environment play one task.

The loop handles messages, not tokens. Training, validation, evaluation and tests share it. It is the only place where
the failure of an environment ends an episode.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import partial
from typing import Annotated, Protocol

from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.envs.settings import OnActionError
from verl_agent.errors import ActionError, EnvError, OperatorEndError, OverlongPromptError
from verl_agent.rollout.oversight import REJECTED, Decision, Overseer, Proposal
from verl_agent.rollout.retrying import with_retries
from verl_agent.rollout.sessions import GuardedSession, ReplayingSession
from verl_agent.sections import STRICT
from verl_agent.types import Author, Episode, Message, Reply, Review, StepResult, StopReason, TaskItem, Turn

ENDED = "a person ended the episode."


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


async def play(
    item: TaskItem,
    session: Session,
    agent: Agent,
    policy: Policy,
    limits: EpisodeLimits,
    overseer: Overseer | None = None,
) -> Episode:
    """Play `item` once and close `session`.

    An environment error ends the episode with `StopReason.ENV_ERROR` and is not raised, so the other episodes of the
    group continue; a prompt that exceeds its budget ends it with `StopReason.OVERLONG_PROMPT`, a person with
    `StopReason.OPERATOR`. Any other error of the agent or the policy is raised.

    Args:
        item: task to play.
        session: fresh session of the item's environment.
        agent: fresh agent that builds the prompt and parses the replies.
        policy: fresh policy that writes the replies.
        limits: limits on turns and seconds.
        overseer: sees each turn before its action is carried out; None to carry out everything.
    """
    guarded = GuardedSession(with_retries(session, agent), limits.timeout_s)
    return await _play(item, guarded, agent, policy, limits.max_turns, overseer or Overseer())


async def _play(
    item: TaskItem, session: Session, agent: Agent, policy: Policy, max_turns: int, overseer: Overseer
) -> Episode:
    """See `play`; the session limits its calls and raises no other exception than `AgentError`."""
    episode = Episode(item, max_turns, success_reward=session.success_reward, started_at=time.time())
    started = time.monotonic()
    try:
        async with overseer.watch(episode):
            prompt = await session.reset(item)
            *first, last = agent.build_prompt(prompt)
            episode.messages += [*first, agent.with_turns_left(last, max_turns)]
            episode.prompt_length = len(episode.messages)
            for _ in range(max_turns):
                if await _play_turn(episode, session, agent, policy, overseer):
                    break
            else:
                episode.stop = StopReason.TURN_LIMIT
    except OverlongPromptError as error:
        episode.stop, episode.error = StopReason.OVERLONG_PROMPT, str(error)
    except EnvError as error:
        episode.stop, episode.error = StopReason.ENV_ERROR, str(error)
    except ActionError as error:
        episode.stop, episode.error = StopReason.ACTION_ERROR, str(error)
    except OperatorEndError as error:
        episode.stop, episode.error = StopReason.OPERATOR, str(error)
    finally:
        await session.close()
        episode.seconds = time.monotonic() - started
    return episode


async def _play_turn(episode: Episode, session: Session, agent: Agent, policy: Policy, overseer: Overseer) -> bool:
    """Play one turn; return True and set `episode.stop` if it ends the episode."""
    taken = await _decide(overseer.act(Proposal(episode, agent)), session, overseer.keep_alive_s)
    if taken is not None and taken.reply is None:
        raise OperatorEndError(taken.review.reason or ENDED)
    asked_at, reply = time.monotonic(), Reply("")
    if taken is None:
        reply = await policy.reply(agent.visible_messages(episode.messages, episode.prompt_length))
    generate_s = time.monotonic() - asked_at - reply.paused_s
    if reply.truncated_by and not reply.tokens:
        episode.stop = reply.truncated_by
        return True
    action = None if reply.truncated_by or taken else agent.parse_reply(reply.text)
    decision, proposed = taken, None
    if taken is None and not reply.truncated_by:
        reviewing = overseer.review(Proposal(episode, agent, reply, action))
        decision = await _decide(reviewing, session, overseer.keep_alive_s)
    if decision is not None and decision.reply is not None:
        proposed = None if taken else reply.text
        reply = replace(reply, text=decision.reply)
        action = agent.parse_reply(reply.text)
    return await _carry_out(episode, session, agent, _Draft(reply, action, generate_s, proposed, decision))


@plain_dataclass(frozen=True, slots=True)
class _Draft:
    """Turn that is decided and not carried out; see `Turn`."""

    reply: Reply
    action: str | None
    generate_s: float
    proposed: str | None
    decision: Decision | None

    @property
    def review(self) -> Review | None:
        return self.decision.review if self.decision else None

    @property
    def author(self) -> Author:
        return self.decision.author if self.decision else "policy"


async def _carry_out(episode: Episode, session: Session, agent: Agent, draft: _Draft) -> bool:
    """Add a decided turn to the episode, and carry its action out unless it was rejected; see `_play_turn`.

    Raises:
        OperatorEndError: a person ends the episode with this turn.
    """
    reply, review, step, began_at = draft.reply, draft.review, None, time.monotonic()
    episode.messages.append({"role": "assistant", "content": reply.text})
    try:
        if reply.truncated_by:
            episode.stop = reply.truncated_by
            return True
        if review is not None and review.decision == "ended":
            raise OperatorEndError(review.reason or ENDED)
        invalid = {} if draft.action is not None else {"invalid_action": 1.0}
        if review is not None and review.decision == "rejected":
            step = StepResult(REJECTED + review.reason, info={"rejected_action": 1.0, **invalid})
        elif draft.action is None:
            step = StepResult(agent.format_error, info=invalid)
        else:
            step = await session.step(draft.action)
    finally:
        env_s = time.monotonic() - began_at
        turn = Turn(reply, draft.action, step, draft.generate_s, env_s, draft.author, draft.proposed, review)
        episode.turns.append(turn)
    played = len(episode.turns)
    observed = agent.observe(step, draft.action, played)
    episode.messages.append(agent.with_turns_left(observed, episode.max_turns - played))
    if step.terminated:
        episode.stop = StopReason.TERMINATED
    return step.terminated


async def _decide(deciding: Awaitable[Decision | None], session: Session, every_s: float) -> Decision | None:
    """Return a decision with the time that it took; meanwhile a call every `every_s` seconds keeps the session open."""

    async def keep_alive() -> None:
        while True:
            await asyncio.sleep(every_s)
            await session.keep_alive()

    began_at, keeping = time.monotonic(), asyncio.create_task(keep_alive())
    try:
        decision = await deciding
    finally:
        keeping.cancel()
    if decision is None:
        return None
    return replace(decision, review=replace(decision.review, seconds=time.monotonic() - began_at))


def _fresh(new_session: Callable[[], Session], agent: Agent) -> Session:
    return with_retries(new_session(), agent)


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

    Args: see `play`; the factories are called for each attempt.

    Returns:
        All attempts. Only the last one can be valid.
    """
    attempts: list[Episode] = []
    for _ in range(1 + limits.retries):
        agent = new_agent()
        session = ReplayingSession(
            partial(_fresh, new_session, agent), limits.timeout_s, limits.retries, limits.on_action_error == "count"
        )
        attempts.append(await _play(item, session, agent, new_policy(), limits.max_turns, overseer or Overseer()))
        attempts[-1].replays = session.errors
        if attempts[-1].stop is not StopReason.ENV_ERROR or session.blames_action:
            break
    return attempts
