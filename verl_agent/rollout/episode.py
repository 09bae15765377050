"""The episode loop: an agent, a policy and an environment play one task.

The loop handles messages, not tokens. Training, validation, evaluation and tests share it. It is the only place where
an error ends an episode. Overseers wrap policy and session (`Oversight`), and retries wrap the session.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated, NamedTuple, Protocol, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass
from typing_extensions import override

from verl_agent.agents.base import Agent, first_action
from verl_agent.envs.session import Session
from verl_agent.envs.settings import OnActionError
from verl_agent.errors import ActionError, EnvError, EpisodeEndError
from verl_agent.returns import reaches
from verl_agent.rollout.actions import ReplySession, joined
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.retrying import with_retries
from verl_agent.rollout.sessions import RecoveringSession
from verl_agent.sections import STRICT
from verl_agent.types import CallResult, Episode, Message, Reply, StopReason, TaskItem, Turn

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
    """Further tries of a call after an environment error, >= 0, see `RecoveringSession`; where the episode cannot be
    replayed, further attempts at it."""
    on_action_error: OnActionError = "count"
    """See `EnvSettings`."""


class Course(NamedTuple):
    """Turns of one episode."""

    max_turns: int
    """Most replies of the policy, >= 1."""
    at_limit: AtLimit | None = None
    """Called with the episode at that limit, returns the limit from then on, see `GroupLimit`; None to end it."""
    given: Sequence[str] = ()
    """First replies of a solved episode, whose turns are played as a part of the prompt."""


async def play_episode(
    item: TaskItem,
    session: Session,
    agent: Agent,
    policy: Policy,
    limits: EpisodeLimits,
    overseer: Oversight | None = None,
) -> Episode:
    """Play `item` once and close `session`. `Player` plays again after an environment error.

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
    replaying = RecoveringSession(lambda: with_retries(lambda: session, agent), limits.timeout_s)
    return await play_once(item, replaying, agent, policy, Course(limits.max_turns), overseer)


async def play_once(
    item: TaskItem,
    session: RecoveringSession,
    agent: Agent,
    policy: Policy,
    course: Course,
    overseer: Oversight | None = None,
) -> Episode:
    """Play one attempt at an episode; see `play_episode`."""
    episode = Episode(item, course.max_turns, success_reward=session.success_reward, started_at=time.time())
    began_at = time.monotonic()
    plain = nullcontext((policy, ReplySession(session)))
    overseen = plain if overseer is None else overseer.oversee(episode, agent, policy, session)
    try:
        async with overseen as (policy, replies):
            *first, last = agent.build_prompt(await session.reset(item))
            episode.messages += [*first, agent.with_turns_left(last, course.max_turns + len(course.given))]
            episode.prompt_length = len(episode.messages)
            await _replay(episode, ReplySession(session), agent, course.given)
            stop = None
            while stop is None:
                stop = await _play_turn(episode, replies, agent, policy)
                if stop is StopReason.TURN_LIMIT and course.at_limit is not None:
                    episode.max_turns = await course.at_limit(episode)
                    stop = stop if episode.max_turns <= len(episode.turns) else None
            episode.stop = stop
    except EpisodeEndError as error:
        episode.stop, episode.error = StopReason(error.stop), str(error)
    finally:
        await session.close()
        episode.replays = session.errors
        episode.seconds = time.monotonic() - began_at
    return episode


async def _replay(episode: Episode, session: ReplySession, agent: Agent, given: Sequence[str]) -> None:
    """Play the first replies of a solved episode, whose turns become a part of the prompt.

    Raises:
        EnvError: the task ends or is solved, so the environment does not answer as in the solved episode.
    """
    if not given:
        return
    begun, policy = Episode(episode.item, episode.max_turns + len(given), list(episode.messages)), GivenReplies(given)
    for number in range(1, len(given) + 1):
        try:
            stop = await _play_turn(begun, session, agent, policy)
        except ActionError as error:
            raise EnvError(f"turn {number} of a replayed episode (horizon.replay): {error}") from error
        if stop or reaches(begun.rewards, episode.success_reward):
            raise EnvError(
                f"a replayed episode (horizon.replay) {f'ended ({stop})' if stop else 'solved the task'} in turn "
                f"{number} of {len(given)}: the environment is not deterministic, its options differ from those of the "
                "solved episode, or the last turns of that one earn nothing."
            )
    episode.messages, episode.prompt_length, episode.given_turns = begun.messages, len(begun.messages), len(given)
    episode.success_reward -= begun.reward


class GivenReplies(Policy):
    """Policy whose replies are known."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = iter(texts)

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        return Reply(next(self._texts))


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
        if step is None and any(one.action is not None and one.step is not None for one in results):
            step = joined(results)  # a later call of the reply failed
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
