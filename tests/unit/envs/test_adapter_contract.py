"""Test that every environment of this repository keeps the contract of `EnvAdapter` and the text of actions."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from env_adapters.scienceworld.adapter import ScienceWorld
from env_adapters.scienceworld.simulator import simulators
from env_adapters.webarena.browser.chromium import installed_chromiums
from tests.support.corpus import embedded_corpus
from tests.support.environments import skip_without_packages
from tests.support.web import serving_pages
from verl_agent.envs.action_format import TagFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import load_adapter, make_env, registered_envs
from verl_agent.envs.testing.attack import attack_env
from verl_agent.envs.testing.check import check_adapter
from verl_agent.envs.testing.contract import KEPT_TEXTS, MULTILINE
from verl_agent.errors import ConfigError
from verl_agent.types import StepResult, TaskItem

SERVED = {"http", "mcp", "openenv", "program"}
"""Environments that need a server or a program; `envs/http/test_client.py`, `env_adapters/mcp`, `env_adapters/openenv`
and `envs/program` check them."""


@dataclass(frozen=True)
class Case:
    """An environment and the options with which it is checked.

    Attributes:
        env: registered name.
        options: `env.options`.
        items: number of tasks of each split to play.
        demonstrations: True if every task has a demonstration.
    """

    env: str
    options: Mapping[str, Any] = field(default_factory=dict)
    items: int = 2
    demonstrations: bool = True

    def __str__(self) -> str:
        return "-".join([self.env, *(f"{key}={value}" for key, value in self.options.items())])


CASES = [
    Case("guess_number"),
    Case("guess_number", {"tolerant": True}),
    Case("textcraft", {"prompt": "short"}),
    Case("two_crafters"),
    Case("babyai", {"prompt": "full"}),
    Case("babyai", {"prompt": "short", "strict": True}, demonstrations=False),
    Case("deepsearch", {"prompt": "full"}),
    Case("scienceworld", items=1),
    Case("webarena", items=1, demonstrations=False),
    Case("gymnasium", demonstrations=False),
    Case("reasoning_gym"),
    Case("textarena", demonstrations=False),
    Case("openspiel", demonstrations=False),
    Case("terminal"),
]
HERE = sorted(name for name, package in registered_envs().items() if package == "verl-agent" and name not in SERVED)


class EasyScienceWorld(ScienceWorld):
    """ScienceWorld with two of its splits, to save time."""

    splits = ("easy_train", "easy_test")


@pytest.fixture(scope="module", autouse=True)
def corpus() -> Iterator[None]:
    with embedded_corpus():
        yield
    simulators().end()  # the process continues with other tests


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Options of WebArena for tasks on a page of the test."""
    evaluation = {"eval_types": ["string_match"], "reference_answers": {"must_include": ["12"]}}
    tasks = [
        {
            "task_id": number,
            "split": "test" if number % 3 else "train",
            "intent_template_id": 17,
            "sites": ["shopping"],
            "intent": "What does the cup cost?",
            "start_url": "__SHOPPING__",
            "eval": {"program_html": [], "reference_url": "", **evaluation},
        }
        for number in range(6)
    ]
    file = tmp_path_factory.mktemp("tasks") / "tasks.json"
    file.write_text(json.dumps(tasks))
    with serving_pages({"/": "<h1>Shop</h1><p>Cup: $12</p>"}) as port:
        yield {"tasks": str(file), "sites": {"shopping": f"http://127.0.0.1:{port}"}}


def skip_if_missing(env: str) -> None:
    if env == "webarena" and not installed_chromiums():
        pytest.skip("Chromium is not installed")
    skip_without_packages(env)


def test_every_environment_of_this_repository_is_checked():
    assert {case.env for case in CASES} == set(HERE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_environments_keep_the_contract(case, request):
    skip_if_missing(case.env)
    options = dict(case.options)
    if case.env == "webarena":
        options |= request.getfixturevalue("shop")
    adapter = EasyScienceWorld if case.env == "scienceworld" else load_adapter(case.env)
    # The sites of WebArena's users may change, those of this test do not.
    report = check_adapter(adapter, options, case.items, timeout_s=120, replay_exact=True, name=case.env, budget_s=4)
    assert not report.violations, str(report)
    assert any("have no demonstration" in note for note in report.notes) is not case.demonstrations
    assert not any("in other processes" in note for note in report.notes), str(report)


@pytest.mark.parametrize("env", [env for env in HERE if env != "webarena"])
def test_a_short_attack_finds_no_wrong_reward(env):
    """The data sheets have the results of longer ones, and that of WebArena what its rules accept."""
    skip_if_missing(env)
    adapter = EasyScienceWorld() if env == "scienceworld" else make_env(env)
    report = attack_env(adapter, items=4, turns=10, limit_s=6)
    assert report.tasks and not report.findings, "\n".join(report.lines())


@pytest.mark.parametrize(
    ("env", "options", "deterministic"),
    [
        *((env, {}, True) for env in ("guess_number", "textcraft", "babyai", "deepsearch", "scienceworld")),
        ("webarena", {"tasks": "embedded"}, True),
        ("webarena", {"tasks": "miniwob"}, True),
        ("webarena", {}, False),  # the user's sites, which episodes share
    ],
)
def test_environments_declare_whether_their_episodes_replay(env, options, deterministic):
    assert make_env(env, options).deterministic is deterministic


@pytest.mark.parametrize("env", HERE)
def test_an_unknown_split_raises_config_error_naming_the_nearest(env):
    skip_if_missing(env)
    with pytest.raises(ConfigError, match=r"has no split 'tset'\. Did you mean 'test'\?"):
        make_env(env, {}).tasks("tset")


@pytest.mark.parametrize("env", HERE)
def test_action_formats_return_actions_as_written(env):
    skip_if_missing(env)
    action_format = make_env(env).action_format
    for name, text in KEPT_TEXTS.items():
        action = action_format.action_with(text)
        kept = action_format.parse(f"I try this.\n{action_format.format(action)}") == action
        assert kept is (action_format.kind != "line" or name not in MULTILINE), name


def first_step(env: EnvAdapter, item: TaskItem, action: str) -> StepResult:
    """Return the result of an action, as the first one of an episode."""

    async def play() -> StepResult:
        session = env.new_session()
        await session.reset(item)
        try:
            return await session.step(action)
        finally:
            await session.close()

    return asyncio.run(play())


@pytest.mark.parametrize("mark", ["`{}`", "**{}**", "`{}", "{}`", "  {}  "])
@pytest.mark.parametrize("env", ["guess_number", "textcraft", "babyai", "scienceworld", "deepsearch"])
def test_environments_accept_actions_with_code_marks(env, mark):
    skip_if_missing(env)
    adapter = make_env(env)
    item = adapter.tasks("easy_test" if "easy_test" in adapter.splits else "test")[0]
    demo = adapter.demonstration(item)[0].action
    plain = first_step(adapter, item, demo)
    assert "invalid_action" not in plain.info
    if isinstance(adapter.action_format, TagFormat):
        name, text = adapter.action_format.split(demo) or ("", "")
        reply = f"<{name}>{mark.format(text)}</{name}>"
    else:
        reply = f"Action: {mark.format(demo)}"
    assert first_step(adapter, item, adapter.action_format.parse(reply) or "") == plain


@pytest.mark.parametrize(
    ("env", "first", "second"),
    [
        ("textcraft", "get 4 birch log", "get  4\nbirch log"),
        ("textcraft", "inventory", '"inventory"'),
        ("babyai", "turn left", "turn\n left"),
        ("scienceworld", "look around", "look\n  around"),
        ("deepsearch", "<search>Mali capital</search>", '<search>\n  "Mali\n  capital"\n</search>'),
    ],
)
def test_environments_ignore_line_breaks_and_quotes_around_an_action(env, first, second):
    skip_if_missing(env)
    adapter = make_env(env)
    item = adapter.tasks("test")[0]
    assert first_step(adapter, item, first) == first_step(adapter, item, second)
