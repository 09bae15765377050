"""Test that numbers of any library are converted, and that any other value of an adapter stops the run."""

import asyncio
import inspect
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.attempts import play_until_valid
from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain
from verl_agent.envs.answers import CheckedSession
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.session import PooledEnv, Session
from verl_agent.envs.testing.check import check_adapter
from verl_agent.errors import ConfigError, ContractError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
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
    "a complex reward": (StepResult("ok", 1j), "gave reward=1j"),
    "two rewards": (StepResult("ok", np.ones(2)), "gave reward=array([1., 1.])"),
    "a reward of 32 bits that is NaN": (StepResult("ok", np.float32("nan")), "gave reward=np.float32(nan)"),
    "a time as reward": (StepResult("ok", np.timedelta64(1, "ns")), "gave reward=np.timedelta64(1,'ns')"),
    "a number as end": (StepResult("ok", terminated=2), "gave terminated=2"),
    "a text as end": (StepResult("ok", terminated="False"), "gave terminated='False'"),
    "None as end": (StepResult("ok", terminated=None), "gave terminated=None"),
    "two ends": (StepResult("ok", terminated=np.array([True, False])), "gave terminated=array([ True, False])"),
    "a measurement that is NaN": (StepResult("ok", info={"speed": math.nan}), "gave info['speed']=nan"),
    "a text as measurement": (StepResult("ok", info={"why": "wrong"}), "gave info['why']='wrong'"),
    "a measurement without a name": (StepResult("ok", info={1: 1.0}), "gave info={1: 1.0}"),
    "half a character in a name": (StepResult("ok", info={"a\ud800": 1}), "gave info={'a\\ud800': 1}"),
    "a measurement of an agent": (StepResult("ok", info={"calls": 1}), "gave info['calls']=1"),
    "a measurement of a retry": (StepResult("ok", info={"failed_attempts": 0}), "gave info['failed_attempts']=0"),
    "a measurement of tools": (StepResult("ok", info={"call_error_moves": 1}), "gave info['call_error_moves']=1"),
    "info without names": (StepResult("ok", info=None), "gave info=None"),
    "a path as media": (StepResult("ok", media=["a.png"]), "gave media=['a.png']"),
    "no media": (StepResult("ok", media=None), "gave media=None"),
    "three sides": (
        StepResult("ok", media=[Media("a.png", box=(0, 0, 1))]),
        "gave media[0].box=(0, 0, 1)",
    ),
    "a place that is NaN": (StepResult("ok", media=[Media("a.png", box=[math.nan] * 4)]), "gave media[0].box=[nan"),
    "a path that is no text": (StepResult("ok", media=[Media(Path("a.png"))]), "gave media[0]=Media(path="),
    "ten million characters": (StepResult("x" * 10**7), "gave an observation of 10,000,000 characters"),
    "one character too many": (StepResult("é" * (10**6 + 1)), "gave an observation of 1,000,001 characters"),
}
RESETS = {
    "a text": ("Begin.", "returned 'Begin.'"),
    "no message": ([], "returned []"),
    "a message without content": ([{"role": "user"}], "gave the message {'role': 'user'}"),
    "a number as content": ([{"role": "user", "content": 1}], "gave the message"),
    "a list of texts": (["Begin."], "gave the message 'Begin.'"),
    "an unknown role": ([{"role": "narrator", "content": "Once."}], "gave the role 'narrator'"),
    "a further key": ([{"role": "user", "content": "Begin.", "name": "a"}], "gave a message with the key 'name'"),
    "a prompt that is too long": (
        [{"role": "system", "content": "x" * 10**6}, {"role": "user", "content": "y"}],
        "gave messages of 1,000,001 characters",
    ),
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


def check_refused(where: str, env: type[Talk], call: str, words: str, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        play_in(where, env)
    assert isinstance(refused.value, ContractError)
    assert str(refused.value).startswith(f"{call} {words}"), refused.value
    assert f" ({line}) in task {ITEM.id!r} of env {ITEM.env!r}. " in str(refused.value)


@pytest.mark.parametrize("where", ["host", "bare"])
@pytest.mark.parametrize("kind", STEPS)
def test_an_invalid_result_of_a_step_stops_the_run_with_the_adapters_line(where, kind):
    answer, words = STEPS[kind]
    check_refused(where, wrong("Wrong", Wrong, answer), "step", words, line_of(Wrong.step))


@pytest.mark.parametrize("where", ["host", "bare"])
@pytest.mark.parametrize("kind", RESETS)
def test_an_invalid_prompt_stops_the_run_with_the_adapters_line(where, kind):
    answer, words = RESETS[kind]
    check_refused(where, wrong("WrongReset", WrongReset, answer), "reset", words, line_of(WrongReset.reset))


@pytest.mark.parametrize("where", ["host", "bare"])
def test_a_step_that_is_no_coroutine_stops_the_run_with_the_adapters_line(where):
    check_refused(where, wrong("Sync", Sync), "step", "returned StepResult(", line_of(Sync.step))


def test_an_invalid_result_is_not_replayed_and_is_not_the_actions_error():
    env = wrong("Wrong", Wrong, None)
    limits = EpisodeLimits(3, timeout_s=5, retries=1)
    with pytest.raises(ContractError):
        asyncio.run(play_until_valid(ITEM, env, plain, lambda: ScriptedPolicy("abc"), limits))
    assert len(env.made) == 1


class Scalar:
    """Scalar that only its library knows, such as a tensor."""

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


NUMBERS = {
    "a whole number": 1,
    "a bool": True,
    "float32": np.float32(1),
    "float16": np.float16(1),
    "int64": np.int64(1),
    "a bool of NumPy": np.bool_(True),
    "an array without dimensions": np.array(1.0),
    "an array with one element": np.array([[1.0]]),
    "a scalar of another library": Scalar(1.0),
    "a decimal number": Decimal("1.0"),
    "a fraction": Fraction(2, 2),
}


@pytest.mark.parametrize("where", ["host", "bare"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_other_types_solve_the_task_and_become_those_of_python(where, kind):
    one = NUMBERS[kind]
    answer = StepResult(np.str_("Done."), one, one, {"steps": one}, [Media("a.png", box=[one, one, one, one])])
    episode = play_in(where, wrong("Wrong", Wrong, answer))
    assert (episode.stop, episode.success, episode.reward) == (StopReason.TERMINATED, True, 1.0)
    step = episode.turns[-1].step
    values = [step.observation, step.reward, step.terminated, step.info["steps"], *step.media[0].box]
    assert [type(value) for value in values] == [str, float, bool, float, float, float, float, float]
    record = to_record(episode, EpisodeMeta("evaluation", "test", 0, "1", 0, datetime.now(UTC), 0.0))
    assert json.loads(json.dumps(record["turns"], allow_nan=False)) == record["turns"]


class Word(StrEnum):
    USER = "user"


@pytest.mark.parametrize("word", [np.str_("user"), Word.USER], ids=["numpy", "enum"])
def test_roles_and_names_of_other_types_become_plain_texts(word):
    class Other(Talk):
        made: ClassVar[list[Talk]] = []

        async def reset(self, item: TaskItem) -> list[Message]:
            return [{"role": word, "content": word}]

        async def step(self, action: str) -> StepResult:
            return StepResult(word, info={word: 1}, media=[Media(word, word)])

    session = CheckedSession(Other())
    (message,), result = asyncio.run(session.reset(ITEM)), asyncio.run(session.step("a"))
    media = result.media[0]
    texts = [message["role"], message["content"], result.observation, *result.info, media.path, media.title]
    assert [(type(text), text) for text in texts] == [(str, "user")] * 6


def test_a_success_return_of_another_type_is_converted_or_refused():
    class Half(Talk):
        made: ClassVar[list[Talk]] = []
        success_reward: Any = Decimal("1.0")

    assert play_in("bare", Half).success_reward == 1.0
    Half.success_reward = math.nan
    with pytest.raises(ContractError, match=r"Half\.success_reward=nan"):
        play_in("host", Half)


@pytest.mark.parametrize("kind", STEPS)
def test_check_adapter_reports_the_same_value(kind):
    answer, words = STEPS[kind]
    found = [str(violation) for violation in check_adapter(wrong("Wrong", Wrong, answer)).violations]
    assert any(words in text and line_of(Wrong.step) in text for text in found), found


def test_check_adapter_gives_the_remedy_of_data_that_is_refused():
    class Tuples(Talk):
        made: ClassVar[list[Talk]] = []

        def tasks(self, split: str) -> list[TaskItem]:
            return [TaskItem("talk", "1", {"at": (1, 2)})]

    (violation,) = check_adapter(Tuples).violations
    assert (violation.got.endswith("which JSON does not keep"), violation.advice) == (True, "Use list(...).")


def test_valid_results_pass():
    class Fine(Talk):
        made: ClassVar[list[Talk]] = []

        async def step(self, action: str) -> StepResult:
            return StepResult("", -1, True, {"steps": 2}, (Media("a.png"),))

    session: Session = Fine()
    episode = asyncio.run(play_episode(ITEM, session, plain(), ScriptedPolicy("a"), EpisodeLimits(3)))
    assert (episode.stop, episode.reward) == (StopReason.TERMINATED, -1)
