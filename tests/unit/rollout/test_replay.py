"""Test that episodes continue after an environment error where the environment is deterministic."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, cycle
from typing import ClassVar

import httpx
import pytest

from tests.support.attempts import play_until_valid
from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain, talk_class
from verl_agent.errors import EnvCrashError, EnvError, EnvTimeoutError, HostLostError
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.trace.episode_summary import summarize_episode
from verl_agent.trace.metrics import episode_metrics
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem

DOWN = "step failed: the site is down"


class Failing(Talk):
    """Environment of `Talk` that fails at chosen calls of `step`, counted over all its sessions."""

    made: ClassVar[list[Talk]]
    failing: ClassVar[set[int]]
    calls: ClassVar[int]
    error: ClassVar[Exception] = EnvError(DOWN)

    async def step(self, action: str) -> StepResult:
        type(self).calls += 1
        if type(self).calls in self.failing:
            raise self.error
        return await super().step(action)


def failing_class(*calls: int, base: type[Failing] = Failing, **attributes: object) -> type[Failing]:
    """Return a class whose `step` fails at the given calls."""
    return type("Failing", (base,), {"made": [], "failing": set(calls), "calls": 0, **attributes})


def run(
    env: type[Talk],
    script: Sequence[str] = ("a", "b", "c", "d"),
    retries: int = 2,
    on_action_error: str = "count",
    **talk: object,
) -> tuple[list[Episode], list[ScriptedPolicy]]:
    policies: list[ScriptedPolicy] = []

    def new_policy() -> ScriptedPolicy:
        policies.append(ScriptedPolicy(script))
        return policies[-1]

    limits = EpisodeLimits(len(script), timeout_s=0.05, retries=retries, on_action_error=on_action_error)
    attempts = asyncio.run(play_until_valid(ITEM, lambda: env(**{"turns": 4, **talk}), plain, new_policy, limits))
    return attempts, policies


def test_an_episode_continues_after_an_error_with_the_replies_that_it_has():
    clean, _ = run(failing_class())
    env = failing_class(3)
    (episode,), (policy,) = run(env)
    assert [session.closed for session in env.made] == [1, 1]
    assert (episode.stop, episode.replays) == (StopReason.TERMINATED, [DOWN])
    assert episode.messages == clean[0].messages
    assert [turn.step for turn in episode.turns] == [turn.step for turn in clean[0].turns]
    assert len(policy.heard) == 4, "no reply was written twice"


def test_a_step_that_takes_too_long_is_replayed_too():
    env = talk_class()
    made = iter(["hang", "", ""])
    limits = EpisodeLimits(2, timeout_s=0.05, retries=1)
    attempts = asyncio.run(
        play_until_valid(ITEM, lambda: env(turns=2, fault=next(made)), plain, lambda: ScriptedPolicy("ab"), limits)
    )
    assert [episode.stop for episode in attempts] == [StopReason.TERMINATED]
    assert attempts[0].replays == ["step took more than 0.05 s"]


def test_each_call_may_fail_in_a_row_as_often_as_retries_allow():
    (episode,), _ = run(failing_class(3, 4, 6, 8))  # `c`; then `a`; then `b`; then `c` again, whose count goes on
    assert (episode.stop, episode.replays) == (StopReason.TERMINATED, [DOWN] * 4)
    (episode,), _ = run(failing_class(3, 4, 6, 7, 10, 11))  # `a` fails three times, and succeeds in between
    assert (episode.stop, episode.replays) == (StopReason.TERMINATED, [DOWN] * 6)
    attempts, _ = run(failing_class(3, 4, 5, 6))  # `c`; then `a` three times
    assert [(one.stop, one.error, one.replays) for one in attempts] == [
        (StopReason.ENV_ERROR, DOWN, [DOWN] * 3),
        (StopReason.TERMINATED, "", []),
    ]


def test_a_step_that_fails_in_all_retries_begins_the_episode_anew():
    attempts, policies = run(failing_class(3, 6, 9))
    assert [(episode.stop, len(episode.replays)) for episode in attempts] == [
        (StopReason.ENV_ERROR, 2),
        (StopReason.TERMINATED, 0),
    ]
    assert [len(policy.heard) for policy in policies] == [3, 4]


@pytest.mark.parametrize("kind", [EnvTimeoutError, HostLostError])
def test_a_timeout_and_a_lost_host_are_repeated_once(kind):
    """A further try would cost the time limit again, or the other sessions of a host."""
    attempts, _ = run(failing_class(3, 6, error=kind(DOWN)), retries=4)
    assert [(episode.stop, len(episode.replays)) for episode in attempts] == [
        (StopReason.ENV_ERROR, 1),
        (StopReason.TERMINATED, 0),
    ]


# Errors of actions


class Trap(Talk):
    """Environment in which the action `trap` fails each time, with reward 0.25 for every other action."""

    made: ClassVar[list[Talk]]

    async def step(self, action: str) -> StepResult:
        if action == "trap":
            self.fail()
        return replace(await super().step(action), reward=0.25)

    def fail(self) -> None:
        raise KeyError("trap")


def trap_class(fail: Callable[[], None] | None = None, **attributes: object) -> type[Trap]:
    """Return a class of `Trap`; `fail` is what the action does in place of raising a `KeyError`."""
    own = {"fail": lambda self: fail()} if fail else {}
    return type("Trap", (Trap,), {"made": [], **own, **attributes})


def test_an_error_that_returns_in_every_fresh_session_is_the_actions():
    env = trap_class()
    (episode,), (policy,) = run(env, ["a", "trap"])
    assert (episode.stop, episode.valid, episode.success, episode.reward) == (
        StopReason.ACTION_ERROR,
        True,
        False,
        0.25,
    )
    assert episode.turns[-1].step is None
    assert "KeyError: 'trap'" in episode.error
    assert episode.error.endswith("(in each of 3 sessions, after the same actions)")
    assert (len(env.made), len(policy.heard)) == (3, 2)


def test_an_episode_with_an_action_error_is_never_a_success():
    (episode,), _ = run(trap_class(success_reward=0.0), ["a", "trap"])
    assert (episode.stop, episode.success) == (StopReason.ACTION_ERROR, False)


def test_action_errors_can_be_left_out():
    attempts, _ = run(trap_class(), ["a", "trap"], on_action_error="drop")
    assert [(one.stop, one.valid) for one in attempts] == [(StopReason.ENV_ERROR, False)]
    assert attempts[0].error.endswith("(in each of 3 sessions, after the same actions)")


def raises(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def differing() -> Callable[[], None]:
    texts = map(str, count())

    def fail() -> None:
        raise KeyError(next(texts))

    return fail


@pytest.mark.parametrize(
    ("fail", "attributes"),
    [
        (raises(EnvError("the service does not answer")), {}),
        (raises(EnvTimeoutError("step took more than 60 s")), {}),
        (raises(HostLostError("the host died")), {}),
        (raises(ConnectionRefusedError("no retriever")), {}),
        (raises(MemoryError()), {}),
        (raises(ExceptionGroup("calls", [ValueError("x"), ConnectionRefusedError("no retriever")])), {}),
        (raises(httpx.RemoteProtocolError("the server sent no answer")), {}),
        (differing(), {}),
        (None, {"deterministic": False}),
    ],
)
def test_other_errors_are_the_environments(fail, attributes):
    attempts, _ = run(trap_class(fail, **attributes), ["a", "trap"])
    assert {episode.stop for episode in attempts} == {StopReason.ENV_ERROR}


def test_without_retries_no_error_is_an_actions():
    (episode,), _ = run(trap_class(), ["trap"], retries=0)
    assert episode.stop is StopReason.ENV_ERROR


def test_an_error_after_an_outage_that_only_looks_like_it_is_the_environments():
    """The connection error is the cause of an exception of the adapter."""

    def fail() -> None:
        try:
            raise ConnectionResetError("peer")
        except ConnectionResetError as error:
            raise RuntimeError("no answer") from error

    attempts, _ = run(trap_class(fail), ["trap"])
    assert attempts[-1].stop is StopReason.ENV_ERROR


def test_a_short_outage_of_an_unknown_kind_is_no_error_of_the_action():
    first: list[float] = []

    def fail() -> None:
        first.append(time.monotonic())
        if first[-1] - first[0] < 0.3:
            raise KeyError("the service answered without its field")

    (episode,), _ = run(trap_class(fail), ["trap", "a", "b", "c"])
    assert (episode.stop, len(episode.replays)) == (StopReason.TERMINATED, 2)


def test_addresses_of_servers_and_objects_do_not_tell_errors_apart():
    servers = cycle(["http://one:80/step answered 500", "http://two:80/step answered 500"])

    def fail() -> None:
        raise EnvCrashError(f"{next(servers)}: {object()!r}")

    (episode,), _ = run(trap_class(fail), ["trap"])
    assert episode.stop is StopReason.ACTION_ERROR


@pytest.mark.parametrize("where", ["prompt", "observation", "reward"])
def test_a_replay_with_other_answers_begins_the_episode_anew(where, caplog):
    class Moody(Failing):
        async def reset(self, item: TaskItem) -> list[Message]:
            messages = await super().reset(item)
            mood = f"Mood {len(self.made)}." if where == "prompt" else ""
            return [*messages[:-1], {"role": "user", "content": f"{messages[-1]['content']}{mood}"}]

        async def step(self, action: str) -> StepResult:
            step = await super().step(action)
            observation = f"{step.observation} {len(self.made)}" if where == "observation" else step.observation
            return StepResult(observation, step.reward + (len(self.made) if where == "reward" else 0), step.terminated)

    with caplog.at_level(logging.WARNING):
        attempts, policies = run(failing_class(3, base=Moody))
    assert [episode.stop for episode in attempts] == [StopReason.ENV_ERROR, StopReason.TERMINATED]
    assert "the replay on a fresh session gave other answers" in attempts[0].error
    assert len(policies) == 2
    named = "the prompt" if where == "prompt" else "the answer to action 1, 'a',"
    assert f"task '1' of env 'talk': {named} differs in a replay" in caplog.text
    assert "deterministic = False" in caplog.text


def test_attempts_stay_within_the_retries():
    for retries in range(3):
        env = failing_class(*range(1, 100))
        attempts, _ = run(env, retries=retries)
        assert len(attempts) == retries + 1
        assert len(env.made) == (retries + 1) ** 2


class Alternating(Failing):
    """Environment of which every call fails and succeeds in turn, whichever session makes it."""

    works: ClassVar[dict[int, bool]]

    async def step(self, action: str) -> StepResult:
        works = self.works[self.heard] = not self.works.get(self.heard, True)
        if not works:
            raise EnvError(DOWN)
        return await Talk.step(self, action)


def test_replays_of_an_episode_stay_within_the_retries_of_its_calls():
    """A pass over n calls, each of which fails and succeeds in turn, needs 2^n replays."""
    env = failing_class(base=Alternating, works={})
    (first, _), _ = run(env, script="abcdefghij", retries=1, turns=10)
    assert (first.stop, first.error) == (StopReason.ENV_ERROR, DOWN)
    assert len(first.replays) <= len(first.turns) + 1, "one for each call, the reset included"


def test_an_action_is_not_blamed_by_fewer_tries_than_retries_allow():
    """Two of three resets fail, so that the replays of the episode end before the action has had its four tries."""

    class Flaky(talk_class()):  # type: ignore[misc]
        resets_of_all = 0

        async def reset(self, item: TaskItem) -> list[Message]:
            Flaky.resets_of_all += 1
            if Flaky.resets_of_all % 3 != 1:
                raise EnvError(DOWN)
            return await super().reset(item)

    first = run(Flaky, retries=3, fault="raise")[0][0]
    assert (first.stop, len(first.replays)) == (StopReason.ENV_ERROR, 6)


def test_retries_and_replays_are_counted_separately():
    attempts, _ = run(failing_class(3, 6, 9))
    replays = sum(len(episode.replays) for episode in attempts)
    metrics = episode_metrics([summarize_episode(attempts[-1], len(attempts), replays)])
    assert (metrics["env/retries"], metrics["env/replays"], metrics["env/errors"]) == (1.0, 2.0, 0.0)


# Distribution of episodes


class Walk(Talk):
    """Environment that ends at the action `end`, and fails at `trap`; any other step fails with probability `rate`."""

    made: ClassVar[list[Talk]] = []
    luck: ClassVar[random.Random]
    rate: ClassVar[float]

    async def step(self, action: str) -> StepResult:
        if action == "trap":
            raise KeyError("trap")
        if self.luck.random() < self.rate:
            raise EnvError(DOWN)
        return StepResult("on", 0.0, action == "end")


class Drawn:
    """Policy that draws its whole episode: 5 or 20 turns, and in one of five episodes `trap` at the second turn."""

    def __init__(self, draws: random.Random) -> None:
        self.turns, self.traps, self.turn = draws.choice((5, 20)), draws.random() < 0.2, 0

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self.turn += 1
        return Reply("trap" if self.traps and self.turn == 2 else "end" if self.turn == self.turns else "on")


def shares(rate: float, deterministic: bool = True, episodes: int = 400) -> tuple[float, float]:
    """Return the share of episodes with 20 turns among the valid ones without `trap`, and of those with it."""
    env = type("Walk", (Walk,), {"made": [], "luck": random.Random(1), "rate": rate, "deterministic": deterministic})
    limits = EpisodeLimits(20, timeout_s=None, retries=2)

    async def play_until(draws: random.Random) -> Episode:
        return (await play_until_valid(ITEM, env, plain, lambda: Drawn(draws), limits))[-1]

    async def play_all() -> list[Episode]:
        return await asyncio.gather(*(play_until(random.Random(number)) for number in range(episodes)))

    valid = [episode for episode in asyncio.run(play_all()) if episode.valid]
    ended = [episode for episode in valid if episode.stop is StopReason.TERMINATED]
    return sum(len(one.turns) == 20 for one in ended) / len(ended), 1 - len(ended) / len(valid)


def test_errors_do_not_change_the_share_of_long_episodes_and_of_those_that_end_in_one():
    """With 5 % of failing steps, an attempt with 5 turns succeeds with 77 %, and one with 20 turns with 36 %."""
    long, trapped = shares(0.0)
    with_errors = shares(0.05)
    assert abs(with_errors[0] - long) < 0.02
    assert abs(with_errors[1] - trapped) < 0.02
    biased = shares(0.05, deterministic=False)
    assert biased[0] < long - 0.1, "the test sees the bias"
    assert biased[1] == 0, "the test sees that episodes vanish"
