"""Test evaluations of the oracle, of random actions and of Python code, which need neither a model nor an engine."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.evaluated_games import recipe
from tests.support.fakes import plain, talk_class
from tests.support.tool_envs import ITEM, Garden
from verl_agent.agents.functions import FunctionCalls
from verl_agent.errors import ConfigError
from verl_agent.evaluation.job import Evaluation, prepare_evaluation
from verl_agent.evaluation.policies import demonstrated_actions, random_policy
from verl_agent.evaluation.run import play_pending
from verl_agent.rollout.function_policy import FunctionPolicy, load_policy
from verl_agent.types import Message, Reply, TaskItem

MESSAGES: list[Message] = [{"role": "user", "content": "Guess."}]
NOT_CALLABLE = 7


def five(messages: list[Message]) -> str:
    """Return the same guess in every turn."""
    return "Action: 5"


async def async_five(messages: list[Message]) -> Reply:
    return Reply("Action: 5", tokens=3)


class Counter:
    """Policy that guesses 1, 2, 3, ...; every episode needs an instance of its own."""

    def __init__(self) -> None:
        self.guess = 0

    def reply(self, messages: Sequence[Message]) -> str:
        self.guess += 1
        return f"Action: {self.guess}"


class WithoutReply:
    """Class that is no policy."""


class Sized:
    """Policy whose constructor needs an argument."""

    def __init__(self, size: int) -> None:
        self.size = size

    def reply(self, messages: Sequence[Message]) -> str:
        return "Action: 5"


def no_text(messages: list[Message]) -> int:
    return len(messages)


def evaluated(folder: Path, model: str, **evaluation) -> Evaluation:
    """Play an evaluation of GuessNumber to its end."""
    prepared = prepare_evaluation(recipe(folder, model, 7, **{"tasks": "test", "max_tasks": 4, **evaluation}))
    asyncio.run(play_pending(prepared, Console(quiet=True)))
    return prepared


def test_the_oracle_solves_every_task(tmp_path):
    evaluation = evaluated(tmp_path, "oracle", max_tasks=None)
    records = evaluation.records()
    assert {record["task"] for record in records} == {item.id for item in evaluation.items}
    assert {(record["model"], record["success"]) for record in records} == {("oracle", True)}


def test_random_actions_are_parsed_and_reproducible(tmp_path):
    first, second = (
        {
            record["task"]: [turn["action"] for turn in record["turns"]]
            for record in evaluated(tmp_path / name, "random").records()
        }
        for name in "ab"
    )
    assert first == second
    assert len({tuple(actions) for actions in first.values()}) > 1
    assert all(action is not None for actions in first.values() for action in actions)


def test_random_actions_come_from_other_tasks_of_the_same_category():
    names = {"a": "easy", "b": "easy", "c": "hard"}
    demonstrated = [(TaskItem("talk", name, category=names[name]), [f"do {name}"]) for name in names]
    for item, action in zip((task for task, _ in demonstrated), ("do b", "do a", None), strict=True):
        policy = random_policy(item, demonstrated, plain(), seed=1)
        replies = {asyncio.run(policy.reply(MESSAGES)).text for _ in range(20)}
        assert replies == ({action} if action else {"do a", "do b"})


def test_random_actions_of_an_environment_of_tools_are_calls():
    env = Garden()
    demonstrated = demonstrated_actions(env, env.tasks("test"))
    agent = FunctionCalls(Garden.action_format)
    policy = random_policy(env.tasks("test")[0], demonstrated, agent, seed=1)
    replies = {asyncio.run(policy.reply(MESSAGES)).text for _ in range(20)}
    assert {str(agent.parse_reply(reply)) for reply in replies} == {str(one.action) for one in env.demonstration(ITEM)}


def test_random_actions_require_demonstrations():
    env = talk_class()()
    with pytest.raises(
        ConfigError, match=r"model\.path='random' draws .* Talk has no oracle\. Use .*python:MODULE:NAME"
    ):
        demonstrated_actions(env, env.tasks("train"))


@pytest.mark.parametrize("name", ["five", "async_five"])
def test_a_function_is_played_and_recorded(tmp_path, name):
    records = evaluated(tmp_path, f"python:{__name__}:{name}").records()
    assert {turn["action"] for record in records for turn in record["turns"]} == {"5"}
    assert {record["model"] for record in records} == {f"python:{__name__}:{name}"}


def test_each_episode_gets_its_own_instance_of_a_class(tmp_path):
    records = evaluated(tmp_path, f"python:{__name__}:Counter").records()
    assert len(records) == 4
    assert all(record["turns"][0]["action"] == "1" for record in records)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("python:module", r"module' is not allowed\. Allowed: python:MODULE:NAME, for example"),
        ("python:no.such.module:reply", r"module 'no\.such\.module' does not import: No module named 'no'\. Install"),
        (f"python:{__name__}:fiv", r"has no 'fiv'\. Did you mean 'five'\?"),
        (f"python:{__name__}:NOT_CALLABLE", r"'NOT_CALLABLE' is of type int\. Allowed: a function of the messages"),
        (f"python:{__name__}:WithoutReply", r"class 'WithoutReply' has no method `reply`"),
    ],
)
def test_an_invalid_path_raises_config_error(path, message):
    with pytest.raises(ConfigError, match=rf"^model\.path='python:.*{message}"):
        load_policy(path)


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("policy_unparsable", "def reply(:", r"does not import: SyntaxError: .*policy_unparsable\.py:1\)"),
        ("policy_broken", "1 / 0", r"does not import: ZeroDivisionError: .*policy_broken\.py:1\)"),
        (
            "policy_needy",
            "import json\nimport no_such_package",
            r"does not import: ModuleNotFoundError: No module named 'no_such_package' \(.*policy_needy\.py:2\)",
        ),
    ],
)
def test_a_module_that_fails_raises_config_error_with_its_line(tmp_path, monkeypatch, module, text, message):
    tmp_path.joinpath(f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=message) as error:
        load_policy(f"python:{module}:reply")
    assert "Install its package" not in str(error.value)


def test_a_class_with_required_arguments_is_reported_before_a_folder_is_made(tmp_path):
    with pytest.raises(ConfigError, match=r"class 'Sized' cannot be constructed: TypeError: .*'size'.* Allowed: a cl"):
        evaluated(tmp_path / "out", f"python:{__name__}:Sized")
    assert not (tmp_path / "out").exists()


def test_an_invalid_path_is_reported_before_a_folder_is_made(tmp_path):
    with pytest.raises(ConfigError, match="has no 'missing'"):
        evaluated(tmp_path / "out", f"python:{__name__}:missing")
    assert not (tmp_path / "out").exists()


def test_a_reply_of_another_type_raises_config_error():
    with pytest.raises(ConfigError, match=r"no_text returned 1 of type int\. Allowed: the text of the reply"):
        asyncio.run(FunctionPolicy(no_text).reply(MESSAGES))


def test_a_policy_that_is_not_callable_raises_config_error():
    with pytest.raises(ConfigError, match=r"a policy=7 is not callable"):
        FunctionPolicy(NOT_CALLABLE)  # type: ignore[arg-type]
