"""The public API: its names, its cost, and playing with any policy."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import verl_agent as va

NAMES = [
    "ActionFormat",
    "Agent",
    "AgentError",
    "Arena",
    "ConfigError",
    "Decision",
    "DemoAction",
    "EnvAdapter",
    "EnvError",
    "EnvErrorLimitError",
    "EnvTimeoutError",
    "Episode",
    "Estimator",
    "EstimatorBatch",
    "FenceFormat",
    "Horizon",
    "HostLostError",
    "Hosting",
    "LineFormat",
    "Message",
    "Outcome",
    "Overseer",
    "Policy",
    "PoolFullError",
    "Proposal",
    "Reply",
    "Requirement",
    "Schedule",
    "StepResult",
    "StopReason",
    "SubGoal",
    "TagFormat",
    "TaskItem",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "Turn",
    "UnknownSessionError",
    "check_adapter",
    "check_agent",
    "check_estimator",
    "list_envs",
    "make_agent",
    "make_env",
    "play",
    "play_sync",
    "read_records",
    "show_episode",
    "summarize",
    "tool",
]
"""A change of this list is a change of the public API and needs a line in the CHANGELOG."""
OF_TENSORS = {"EstimatorBatch", "check_estimator"}
"""Names that import torch; tests/verl uses them."""


def guess(text: str):
    """Return a policy that always replies `text`."""
    return lambda messages: text


def first_task():
    env = va.make_env("guess_number")
    return env.tasks("small_test")[0], env


def test_the_public_names_are_pinned():
    assert va.__all__ == NAMES
    assert all(getattr(va, name) is not None for name in NAMES if name not in OF_TENSORS)


def test_an_unknown_name_raises_and_lists_the_public_names():
    with pytest.raises(AttributeError, match=r"no attribute 'plya'\. Public names: ActionFormat"):
        va.plya  # noqa: B018


def test_importing_takes_under_300_ms_and_loads_neither_torch_nor_verl():
    code = (
        "import sys, time; start = time.perf_counter(); import verl_agent as va; va.EnvAdapter; va.TaskItem;"
        "took = time.perf_counter() - start;"
        "assert not {'torch', 'verl', 'ray', 'transformers'} & sys.modules.keys(), sorted(sys.modules);"
        "print(took)"
    )
    took = min(float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(3))
    assert took < 0.3


def test_playing_loads_neither_torch_nor_verl():
    code = (
        "import sys, verl_agent as va; env = va.make_env('guess_number');"
        "va.play_sync(env.tasks('test')[0], env, policy=lambda messages: 'Action: 5', max_turns=2);"
        "assert not {'torch', 'verl', 'ray', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_function_plays_an_episode():
    task, env = first_task()
    episode = va.play_sync(task, env, policy=guess(f"Action: {task.data['target']}"), max_turns=3)
    assert (episode.success, episode.stop, len(episode.turns)) == (True, va.StopReason.TERMINATED, 1)


def test_an_asynchronous_function_plays_an_episode():
    task, env = first_task()

    async def reply(messages: Sequence[va.Message]) -> str:
        await asyncio.sleep(0)
        return "Action: 0"

    episode = va.play_sync(task, env, policy=reply, max_turns=3)
    assert (episode.stop, len(episode.turns)) == (va.StopReason.TURN_LIMIT, 3)


def test_an_object_with_reply_plays_an_episode():
    class Counts:
        """Replies 1, 2, 3, ..."""

        number = 0

        async def reply(self, messages: Sequence[va.Message]) -> va.Reply:
            self.number += 1
            return va.Reply(f"Action: {self.number}")

    task, env = first_task()
    episode = va.play_sync(task, env, policy=Counts(), agent="act", max_turns=50)
    assert episode.success
    assert [turn.action for turn in episode.turns] == [str(n) for n in range(1, task.data["target"] + 1)]


def test_an_environment_can_be_played_again():
    task, env = first_task()
    policy = guess(f"Action: {task.data['target']}")
    assert [va.play_sync(task, env, policy=policy, max_turns=1).success for _ in range(2)] == [True, True]


def test_play_sync_inside_an_event_loop_says_to_await_play():
    task, env = first_task()

    async def notebook() -> None:
        va.play_sync(task, env, policy=guess("Action: 1"))

    with pytest.raises(RuntimeError, match="await play"):
        asyncio.run(notebook())


def test_a_policy_of_a_wrong_kind_raises_config_error():
    task, env = first_task()
    with pytest.raises(va.ConfigError, match="policy"):
        va.play_sync(task, env, policy="gpt")  # type: ignore[arg-type]


def test_an_agent_takes_options_and_a_context():
    agent = va.make_agent("act", va.LineFormat(), context={"keep": "last", "turns": 2}, instructions=False)
    assert agent.instructions is False
    with pytest.raises(va.ConfigError, match="instrucions"):
        va.make_agent("act", va.LineFormat(), instrucions=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_turns": 0}, "max_turns=0 is not allowed. Allowed: a whole number >= 1."),
        ({"max_turns": -1}, "max_turns=-1 is not allowed. Allowed: a whole number >= 1."),
        ({"max_turns": "3"}, "max_turns='3' is not allowed. Allowed: a whole number >= 1."),
        ({"timeout_s": -1}, "timeout_s=-1 is not allowed. Allowed: a number > 0 or null."),
        ({"env": "guess_number"}, "env='guess_number' is not an EnvAdapter. Use make_env('guess_number')."),
        ({"item": "1"}, "item='1' is not a TaskItem. Use one of env.tasks(split)."),
        ({"agent": 3}, "agent=3 is not an agent. Use a registered name, or make_agent(name, ...)."),
    ],
)
def test_an_invalid_argument_of_play_raises_config_error(arguments, message):
    task, env = first_task()
    with pytest.raises(va.ConfigError) as error:
        va.play_sync(**{"item": task, "env": env, "policy": guess("Action: 1"), **arguments})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: va.make_agent(3, va.LineFormat()), "agent.name=3 is not allowed. Allowed: a text."),
        (lambda: va.make_agent("", va.LineFormat()), "agent.name='' is not registered. Known: act, "),
        (lambda: va.make_agent("act", "line"), "action_format='line' is not an ActionFormat. Use env.action_format."),
        (lambda: va.make_agent("act", va.LineFormat(), context="last"), "agent.context='last' is not allowed. "),
        (lambda: va.make_env(3), "env.name=3 is not allowed. Allowed: a text."),
    ],
)
def test_an_invalid_argument_of_a_factory_raises_config_error(call, message):
    with pytest.raises(va.ConfigError) as error:
        call()
    assert str(error.value).startswith(message)


def test_a_policy_that_raises_is_reported_with_its_file_and_line():
    task, env = first_task()

    def broken(messages):
        return {}["reply"]

    with pytest.raises(va.ConfigError, match=r"policy failed: KeyError: 'reply'.*test_api\.py:\d+"):
        va.play_sync(task, env, policy=broken)


def test_an_error_of_play_sync_has_no_unrelated_cause():
    task, env = first_task()
    with pytest.raises(va.ConfigError) as caught:
        va.play_sync(task, env, policy=guess("Action: 1"), max_turns=0)
    assert caught.value.__context__ is None or "event loop" not in str(caught.value.__context__)


def test_type_checkers_read_the_hints_of_the_installed_package():
    """PEP 561: the marker lies in the package, and in the wheel by the package data of setup.py."""
    assert (Path(va.__file__).parent / "py.typed").is_file()
