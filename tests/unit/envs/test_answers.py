"""Test that a value that an adapter may not return ends one episode, with the line of the adapter."""

import asyncio
import inspect
import json
import math
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.session import PooledEnv, Session
from verl_agent.envs.testing.check import check_adapter
from verl_agent.rollout.episode import EpisodeLimits, play_episode, play_until_valid
from verl_agent.trace.record import EpisodeMeta, to_record
from verl_agent.types import Episode, Media, Message, StepResult, StopReason, TaskItem


class Wrong(Talk):
    """Environment whose second step returns `answer`."""

    made: ClassVar[list[Talk]] = []
    answer: ClassVar[Any] = None

    async def step(self, action: str) -> StepResult:
        good = await super().step(action)
        return type(self).answer if self.heard == 2 else good


class WrongReset(Talk):
    """Environment whose reset returns `answer`."""

    made: ClassVar[list[Talk]] = []
    answer: ClassVar[Any] = None

    async def reset(self, item: TaskItem) -> list[Message]:
        return type(self).answer


class Sync(Talk):
    """Environment whose step is no coroutine."""

    made: ClassVar[list[Talk]] = []

    def step(self, action: str) -> StepResult:  # type: ignore[override]
        return StepResult("ok")


STEPS = {
    "a Gymnasium tuple": (("ok", 1.0, True, False, {}), "returned ('ok', 1.0, True, False, {})"),
    "None": (None, "returned None"),
    "a text": ("ok", "returned 'ok'"),
    "a number as text": (StepResult(42), "gave observation=42"),
    "None as text": (StepResult(None), "gave observation=None"),
    "NaN": (StepResult("ok", math.nan), "gave reward=nan"),
    "infinity": (StepResult("ok", -math.inf), "gave reward=-inf"),
    "a reward beyond float": (StepResult("ok", 10**400), "gave reward=1000"),
    "a text as reward": (StepResult("ok", "1"), "gave reward='1'"),
    "None as reward": (StepResult("ok", None), "gave reward=None"),
    "a number as end": (StepResult("ok", terminated=1), "gave terminated=1"),
    "a measurement that is NaN": (StepResult("ok", info={"speed": math.nan}), "gave speed=nan"),
    "a text as measurement": (StepResult("ok", info={"why": "wrong"}), "gave why='wrong'"),
    "info without names": (StepResult("ok", info=None), "gave info=None"),
    "a path as media": (StepResult("ok", media=["a.png"]), "gave media=['a.png']"),
    "no media": (StepResult("ok", media=None), "gave media=None"),
}
RESETS = {
    "a text": ("Begin.", "returned 'Begin.'"),
    "no message": ([], "returned []"),
    "a message without content": ([{"role": "user"}], "gave the message {'role': 'user'}"),
    "a number as content": ([{"role": "user", "content": 1}], "gave the message"),
    "a list of texts": (["Begin."], "gave the message 'Begin.'"),
    "an unknown role": ([{"role": "narrator", "content": "Once."}], "gave the role 'narrator'"),
    "the model's turn": ([{"role": "assistant", "content": "OK."}], "ended with a message of 'assistant'"),
}


def wrong(kind: str, base: type[Talk], answer: object = None) -> type[Talk]:
    return type(kind, (base,), {"made": [], "answer": answer, "__module__": __name__})


def line_of(method: object) -> str:
    return f"{__file__}:{inspect.unwrap(method).__code__.co_firstlineno}"


def play_in(where: str, env: type[Talk]) -> Episode:
    """Play one episode as evaluations do (`host`), or with a bare adapter (`bare`)."""

    async def run() -> Episode:
        limits, policy = EpisodeLimits(3, timeout_s=5), ScriptedPolicy("abc")
        if where == "bare":
            return await play_episode(ITEM, env(), plain(), policy, limits)
        pool = inline_pool(env(), CallLimits(), PoolLimits(count=1))
        new_session = lambda: PooledEnv(env(), pool)  # noqa: E731
        try:
            return (await play_until_valid(ITEM, new_session, plain, lambda: policy, limits))[-1]
        finally:
            await pool.shutdown()

    return asyncio.run(run())


def check_ended(episode: Episode, call: str, words: str, line: str) -> None:
    assert (episode.stop, episode.valid, episode.reward) == (StopReason.ENV_ERROR, False, 0.0)
    assert episode.error.startswith(f"{call} {words}"), episode.error
    assert f" ({line}). " in episode.error
    record = to_record(episode, EpisodeMeta("evaluation", "test", 0, "1", 0, datetime.now(UTC), 0.0))
    json.dumps(record["turns"], allow_nan=False)


@pytest.mark.parametrize("where", ["host", "bare"])
@pytest.mark.parametrize("kind", STEPS)
def test_an_invalid_result_of_a_step_ends_its_episode_with_the_adapters_line(where, kind):
    answer, words = STEPS[kind]
    episode = play_in(where, wrong("Wrong", Wrong, answer))
    check_ended(episode, "step", words, line_of(Wrong.step))
    assert len(episode.turns) == 2


@pytest.mark.parametrize("where", ["host", "bare"])
@pytest.mark.parametrize("kind", RESETS)
def test_an_invalid_prompt_ends_its_episode_with_the_adapters_line(where, kind):
    answer, words = RESETS[kind]
    check_ended(play_in(where, wrong("WrongReset", WrongReset, answer)), "reset", words, line_of(WrongReset.reset))


@pytest.mark.parametrize("where", ["host", "bare"])
def test_a_step_that_is_no_coroutine_ends_its_episode_with_the_adapters_line(where):
    episode = play_in(where, wrong("Sync", Sync))
    check_ended(episode, "step", "returned StepResult(", line_of(Sync.step))
    assert "`async def step(...)`" in episode.error


def test_an_invalid_result_that_returns_in_a_replay_is_the_actions_error():
    env = wrong("Wrong", Wrong, None)
    limits = EpisodeLimits(3, timeout_s=5, retries=1)
    attempts = asyncio.run(play_until_valid(ITEM, env, plain, lambda: ScriptedPolicy("abc"), limits))
    assert [one.stop for one in attempts] == [StopReason.ACTION_ERROR]


@pytest.mark.parametrize("kind", STEPS)
def test_check_adapter_reports_the_same_value(kind):
    answer, words = STEPS[kind]
    found = [str(violation) for violation in check_adapter(wrong("Wrong", Wrong, answer)).violations]
    assert any(words in text and line_of(Wrong.step) in text for text in found), found


def test_valid_results_pass():
    class Fine(Talk):
        made: ClassVar[list[Talk]] = []

        async def step(self, action: str) -> StepResult:
            return StepResult("", -1, True, {"steps": 2}, (Media("a.png"),))

    session: Session = Fine()
    episode = asyncio.run(play_episode(ITEM, session, plain(), ScriptedPolicy("a"), EpisodeLimits(3)))
    assert (episode.stop, episode.reward) == (StopReason.TERMINATED, -1)
