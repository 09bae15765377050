"""Test that episodes continue after an environment error where the environment is deterministic."""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import ClassVar

import pytest

from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain, talk_class
from verl_agent.errors import EnvError
from verl_agent.rollout.episode import EpisodeLimits, play_until_valid
from verl_agent.trace.episode_summary import summarize_episode
from verl_agent.trace.metrics import episode_metrics
from verl_agent.types import Episode, Message, Reply, StepResult, StopReason, TaskItem

DOWN = "step failed: the site is down"


class Failing(Talk):
    """Environment of `Talk` that fails at chosen calls of `step`, counted over all its sessions."""

    made: ClassVar[list[Talk]]
    failing: ClassVar[set[int]]
    calls: ClassVar[int]

    async def step(self, action: str) -> StepResult:
        type(self).calls += 1
        if type(self).calls in self.failing:
            raise EnvError(DOWN)
        return await super().step(action)


def failing_class(*calls: int, base: type[Failing] = Failing, **attributes: object) -> type[Failing]:
    """Return a class whose `step` fails at the given calls."""
    return type("Failing", (base,), {"made": [], "failing": set(calls), "calls": 0, **attributes})


def run(
    env: type[Talk], script: Sequence[str] = ("a", "b", "c", "d"), retries: int = 2, **talk
) -> tuple[list[Episode], list[ScriptedPolicy]]:
    policies: list[ScriptedPolicy] = []

    def new_policy() -> ScriptedPolicy:
        policies.append(ScriptedPolicy(script))
        return policies[-1]

    limits = EpisodeLimits(len(script), timeout_s=0.05, retries=retries)
    attempts = asyncio.run(play_until_valid(ITEM, lambda: env(**{"turns": 4, **talk}), plain, new_policy, limits))
    return attempts, policies


def test_an_episode_continues_after_an_error_with_the_replies_that_it_has():
    clean, _ = run(failing_class())
    (episode,), (policy,) = run(failing_class(3))
    assert (episode.stop, episode.replays) == (StopReason.TERMINATED, [DOWN])
    assert episode.messages == clean[0].messages
    assert [turn.step for turn in episode.turns] == [turn.step for turn in clean[0].turns]
    assert len(policy.heard) == 4, "no reply was written twice"


def test_every_session_of_a_replayed_episode_is_closed():
    env = failing_class(3)
    run(env)
    assert [session.closed for session in env.made] == [1, 1]


def test_a_step_that_takes_too_long_is_replayed_too():
    env = talk_class()
    made = iter(["hang", "", ""])
    limits = EpisodeLimits(2, timeout_s=0.05, retries=1)
    attempts = asyncio.run(
        play_until_valid(ITEM, lambda: env(turns=2, fault=next(made)), plain, lambda: ScriptedPolicy("ab"), limits)
    )
    assert [episode.stop for episode in attempts] == [StopReason.TERMINATED]
    assert attempts[0].replays == ["step took more than 0.05 s"]


def test_an_error_during_a_replay_is_replayed_as_long_as_retries_last():
    (episode,), _ = run(failing_class(3, 4))
    assert (episode.stop, episode.replays) == (StopReason.TERMINATED, [DOWN, DOWN])
    (lost,), _ = run(failing_class(3, 4, 5))
    assert (lost.stop, lost.error, lost.replays) == (StopReason.ENV_ERROR, DOWN, [DOWN, DOWN])


def test_a_step_that_fails_again_in_its_replay_begins_the_episode_anew():
    """Its action may be the reason, and then no replay helps."""
    attempts, policies = run(failing_class(3, 6))
    assert [(episode.stop, len(episode.replays)) for episode in attempts] == [
        (StopReason.ENV_ERROR, 1),
        (StopReason.TERMINATED, 0),
    ]
    assert [len(policy.heard) for policy in policies] == [3, 4]


def test_an_environment_that_is_not_deterministic_begins_anew():
    attempts, policies = run(failing_class(3, deterministic=False))
    assert [(episode.stop, episode.replays) for episode in attempts] == [
        (StopReason.ENV_ERROR, []),
        (StopReason.TERMINATED, []),
    ]
    assert [len(policy.heard) for policy in policies] == [3, 4]


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


def test_sessions_of_all_attempts_stay_within_the_retries():
    for failing in ([1, 2, 3, 4, 5], [3, 6, 9], [2, 4, 6, 8], [3, 4, 5, 6]):
        for retries in range(4):
            env = failing_class(*failing)
            run(env, retries=retries)
            assert len(env.made) <= retries + 1, (failing, retries)


def test_retries_and_replays_are_counted_separately():
    attempts, _ = run(failing_class(3, 6))
    replays = sum(len(episode.replays) for episode in attempts)
    metrics = episode_metrics([summarize_episode(attempts[-1], len(attempts), replays)])
    assert (metrics["env/retries"], metrics["env/replays"], metrics["env/errors"]) == (1.0, 1.0, 0.0)


# Distribution of episodes


class Walk(Talk):
    """Environment that ends at the action `end`; a step fails with the probability `rate`."""

    made: ClassVar[list[Talk]] = []
    luck: ClassVar[random.Random]
    rate: ClassVar[float]

    async def step(self, action: str) -> StepResult:
        if self.luck.random() < self.rate:
            raise EnvError(DOWN)
        return StepResult("on", 0.0, action == "end")


class LongOrShort:
    """Policy that draws the length of its episode: 5 or 20 turns."""

    def __init__(self, draws: random.Random) -> None:
        self.left = draws.choice((5, 20))

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self.left -= 1
        return Reply("end" if self.left == 0 else "on")


def share_of_long_episodes(rate: float, deterministic: bool, episodes: int = 400) -> float:
    """Return the share of episodes with 20 turns among the valid ones."""
    env = type("Walk", (Walk,), {"luck": random.Random(1), "rate": rate, "deterministic": deterministic})
    limits = EpisodeLimits(20, timeout_s=None, retries=2)

    async def play_all() -> list[Episode]:
        last = []
        for number in range(episodes):
            draws = random.Random(number)
            last.append((await play_until_valid(ITEM, env, plain, lambda draws=draws: LongOrShort(draws), limits))[-1])
        return last

    valid = [episode for episode in asyncio.run(play_all()) if episode.valid]
    return sum(len(episode.turns) == 20 for episode in valid) / len(valid)


def test_errors_do_not_change_the_share_of_long_episodes():
    """With 2 % of failing steps, 90 % of the attempts with 5 turns succeed and 67 % of those with 20 turns."""
    without_errors = share_of_long_episodes(0.0, deterministic=True)
    assert abs(share_of_long_episodes(0.02, deterministic=True) - without_errors) < 0.03
    assert share_of_long_episodes(0.02, deterministic=False) < without_errors - 0.04, "the test sees the bias"
