"""Recorded episode up to one of its turns, and what follows: replies of a policy, or episodes after a given reply."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from typing_extensions import override

from verl_agent.agents.base import Agent
from verl_agent.errors import ConfigError, RequestRefusedError
from verl_agent.evaluation.settings import EvaluationSettings
from verl_agent.evaluation.what_if.recorded import RecordedEpisode
from verl_agent.oversight.base import Decision, Overseer, Proposal
from verl_agent.rollout.player import Player
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.types import Episode, Message, Reply, TaskItem

SHOWN = 60
"""Characters on either side of a difference that an error shows."""
T = TypeVar("T")


@runtime_checkable
class TokenPolicy(Protocol):
    """Policy that keeps the tokens of its episode, so that it has to be told of turns that it did not play."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Return the next reply."""
        ...

    async def add_given(self, messages: Sequence[Message], reply: Reply) -> None:
        """Append a turn that was played before."""
        ...

    async def continue_reply(self, messages: Sequence[Message], beginning: str) -> Reply:
        """Return a reply whose beginning is given."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """Player with the settings of the recorded run, and its policy as results record it.

    Attributes:
        player: player whose overseer decides on the actions after the turn, as in the recorded run.
        settings: section `evaluation`: temperature, top-p, seed, and the number of samples that are drawn at once.
        others: checksum of the other settings on which samples depend. Those of different settings are never pooled.
    """

    player: Player[Any]
    model: str
    settings: EvaluationSettings
    others: str = ""

    @property
    def max_turns(self) -> int:
        """Turn limit of the episodes."""
        return self.player.limits.max_turns

    def seed_of(self, item: TaskItem, sample: int) -> EpisodeSeed:
        """Return the seed of a sample by its index. Both actions of a comparison have the same seeds."""
        return EpisodeSeed(self.settings.seed, "what_if", item.env, item.id, step=0, sample=sample)


class Replay(Overseer):
    """Overseer that compares a replay with the recorded episode, and rejects what was rejected there, before a turn.

    Args:
        turn: number of the turn from which on the other overseer decides, from 1.
    """

    def __init__(self, recorded: RecordedEpisode, turn: int, then: Overseer | None) -> None:
        self._recorded, self._turn, self._then = recorded, turn, then or Overseer()

    @override
    @asynccontextmanager
    async def watch(self, episode: Episode) -> AsyncIterator[None]:
        async with self._then.watch(episode):
            yield

    @override
    async def decide(self, proposal: Proposal) -> Decision | None:
        """Compare before each reply of the replay.

        Raises:
            ConfigError: the replay differs from the record.
        """
        turn = len(proposal.episode.turns) + 1
        if proposal.reply is None and turn <= self._turn:
            check_same(self._recorded, proposal.episode)
        if turn >= self._turn:
            return await self._then.decide(proposal)
        review = self._recorded.episode.turns[turn - 1].reply.review
        if proposal.reply is None or review is None or review.decision != "rejected":
            return None
        return Decision("reject", reason=review.reason, by=review.by)


class BranchPolicy(Policy):
    """Policy that gives known replies first, and then those of another policy."""

    def __init__(self, known: Iterable[Reply], policy: Policy) -> None:
        self._known, self._policy = iter(known), policy

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        known = next(self._known, None)
        if known is None:
            return await self._policy.reply(messages)
        if isinstance(self._policy, TokenPolicy):
            await self._policy.add_given(messages, known)
        return known


def visible_messages(recorded: RecordedEpisode, turn: int, agent: Agent) -> list[Message]:
    """Return the messages that the model read before its reply in a turn, counted from 1."""
    return agent.visible_messages(recorded.messages_before(turn), recorded.episode.prompt_length)


def check_same(recorded: RecordedEpisode, episode: Episode) -> None:
    """Check that an episode is the recorded one up to its next turn: the messages, and the reward of its last turn.

    Raises:
        ConfigError: they differ; the message shows the first difference.
    """
    last, then, now = len(episode.turns), recorded.messages_before(len(episode.turns) + 1), episode.messages
    if then != now:
        texts = zip(*(tuple(message["content"] for message in messages) for messages in (then, now)), strict=False)
        first = next((pair for pair in texts if pair[0] != pair[1]), None)
        shown = "another number or other roles of messages" if first is None else _first_difference(*first)
        raise ConfigError(
            f"turn {last + 1} of a replay of {recorded.name} differs from the record: {shown}. Either env "
            f"{recorded.record['env']!r} is not deterministic (its adapter should then set `deterministic = False`), "
            "or env.options, the agent, the turn limit or data.overlong_prompt differ from those of the run."
        )
    if last and (before := recorded.episode.rewards[last - 1]) != (after := episode.rewards[last - 1]):
        raise ConfigError(
            f"turn {last} of a replay of {recorded.name} gave the reward {after:g} instead of {before:g}: env "
            f"{recorded.record['env']!r} is not deterministic, or its options differ from those of the run."
        )


def _first_difference(then: str, now: str) -> str:
    shared = next((index for index, pair in enumerate(zip(then, now, strict=False)) if pair[0] != pair[1]), None)
    shared = min(len(then), len(now)) if shared is None else shared
    old, new = (text[max(0, shared - SHOWN) : shared + SHOWN] for text in (then, now))
    return f"it was {old!r}, now it is {new!r}"


def reply_with(recorded: RecordedEpisode, turn: int, agent: Agent, action: str) -> Reply:
    """Return the reply that takes an action at a turn, without a thought.

    Raises:
        ConfigError: the agent reads another action in it, since its format cannot hold the action.
    """
    before = replace(recorded.episode, turns=recorded.episode.turns[: turn - 1])
    return Reply(Proposal(before, agent).write(action))


async def sample_replies(
    recorded: RecordedEpisode, turn: int, sampling: Sampling, samples: Iterable[int], with_thought: bool = True
) -> list[Reply | RequestRefusedError]:
    """Return replies of a policy at a recorded turn; no environment is played.

    A sample whose request a server refuses is the error, so that the others are kept.

    Args:
        with_thought: False to begin each reply with the mark of the action, so that no thought precedes it (zero
            tokens of early answering: Lanham et al., arXiv 2307.13702, section 2.3).

    Raises:
        ConfigError: replies without a thought are asked of a policy that is no model, or of an agent whose replies are
            the action; or no room is left for a reply.
    """
    player, item = sampling.player, recorded.episode.item
    beginning = "" if with_thought else player.new_agent().action_mark
    if not with_thought and not beginning:
        raise ConfigError("--without-thought: this agent passes the whole reply as the action, so it has no thought.")

    async def draw(index: int) -> Reply | RequestRefusedError:
        agent, policy = player.new_agent(), player.new_policy(item, sampling.seed_of(item, index))
        if beginning and not isinstance(policy, TokenPolicy):
            raise ConfigError(
                "--without-thought begins the reply for a model, and this policy is not a model. Set model.path."
            )
        *earlier, messages = (visible_messages(recorded, number, agent) for number in range(1, turn + 1))
        branch = BranchPolicy((played.reply for played in recorded.episode.turns[: turn - 1]), policy)
        try:
            for shown in earlier:
                await branch.reply(shown)
            reply = await (policy.continue_reply(messages, beginning) if beginning else branch.reply(messages))
        except RequestRefusedError as error:
            return error
        if reply.truncated_by and not reply.tokens:
            raise ConfigError(
                f"turn {turn} of {recorded.name} leaves no tokens for a reply. Raise data.max_response_length."
            )
        return cast(Reply, reply)

    return await _gather(draw, samples, sampling.settings.concurrency)


async def play_on(
    recorded: RecordedEpisode, turn: int, given: Reply, sampling: Sampling, samples: Iterable[int]
) -> list[Episode]:
    """Replay an episode to a turn in fresh sessions, give a reply there, and play on.

    The environment must answer as it did in the record. What was rejected there is rejected again (`Replay`). After an
    environment error the actions are replayed once more (`RecoveringSession`).

    Returns:
        The last attempt at each episode, from its first turn on; those with an environment error are not valid.

    Raises:
        ConfigError: the environment declares that it is not deterministic, or a replay differs from the record.
    """
    player, item, env = sampling.player, recorded.episode.item, recorded.record["env"]
    if not player.new_session().deterministic:
        raise ConfigError(
            f"env {env!r} is not deterministic (`deterministic = False`), so an episode cannot be "
            "played up to a turn again. Ask for other replies at the turn instead: leave out --action and --oracle."
        )
    replies = [*(played.reply for played in recorded.episode.turns[: turn - 1]), given]
    branching = replace(
        player,
        new_policy=lambda item, seed: BranchPolicy(replies, player.new_policy(item, seed)),
        overseer=Replay(recorded, turn, cast(Overseer | None, player.overseer)),
    )

    async def play(index: int) -> Episode:
        episode = (await branching.play(item, sampling.seed_of(item, index))).episode
        if episode.valid and len(episode.turns) < turn:
            raise ConfigError(
                f"a replay of {recorded.name} ended after turn {len(episode.turns)} ({episode.stop}), before turn "
                f"{turn}: env {env!r} is not deterministic, or a limit is smaller than in the run."
            )
        return episode

    return await _gather(play, samples, sampling.settings.concurrency)


async def _gather(call: Callable[[int], Coroutine[Any, Any, T]], samples: Iterable[int], concurrency: int) -> list[T]:
    """Return the results of the calls in order; the first error cancels the others."""
    free = asyncio.Semaphore(concurrency)

    async def limited(index: int) -> T:
        async with free:
            return await call(index)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limited(index)) for index in samples]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
