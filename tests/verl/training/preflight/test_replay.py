"""Test the checks of `horizon.replay` before a run: solved episodes exist, replay, and fit into the prompt."""

import json
import re

import pytest

from env_adapters.textcraft.adapter import TextCraft
from tests.support.composing import ROOT, recipe
from tests.support.episodes import STARTED
from tests.support.models import CHATML, without_template, write_byte_model
from tests.support.packages import write_metadata
from verl_agent.agents.registry import AgentSettings, make_agent
from verl_agent.config.keys import literal
from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.rollout.oracle import demonstrate
from verl_agent.trace.record import EpisodeMeta, to_record
from verl_agent.training.preflight.replay import check_replay
from verl_agent.types import DemoAction

TEXTS = ["Goal: craft 1 oak planks. Got 1 oak log. Action: get 1 oak log"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_byte_model(tmp_path_factory.mktemp("models"), TEXTS, vocabulary=300)


def check(model, *changes):
    lines = []
    plan = RunPlan.read(
        recipe(ROOT / "recipes/textcraft/grpo_cpu.yaml", f"actor_rollout_ref.model.path={model}", *changes)
    )
    check_replay(plan, plan.envs[0], lines.append)
    return lines


def test_the_demonstrations_are_replayed_and_their_length_is_told(model):
    changes = ["data.max_prompt_length=4000", "data.max_response_length=400", "horizon.max_turns=[1]"]
    (line,) = check(model, *changes, "horizon.replay={}")
    turns, tokens = re.match(r"replay in textcraft: at most (\d+) turns? and (\d+) of 4000 tokens", line).groups()
    (spare,) = check(model, *changes[:2], "horizon.max_turns=[2]", "horizon.replay={spare:1}")
    assert int(turns) >= 1 and int(tokens) < 4000 and spare == line
    assert check(model, *changes) == []


def test_the_prompts_have_the_chat_template_of_the_recipe(model, tmp_path):
    silent = without_template(write_byte_model(tmp_path / "model", TEXTS, vocabulary=300))
    changes = ["data.max_prompt_length=4000", "data.max_response_length=400", "horizon.max_turns=[1]"]
    template = f"actor_rollout_ref.model.custom_chat_template={literal(CHATML)}"
    assert check(silent, *changes, "horizon.replay={}", template) == check(model, *changes, "horizon.replay={}")


def test_a_prompt_that_is_too_long_with_its_turns_is_refused(model):
    with pytest.raises(ConfigError, match=r"8 of 8 prompts of 'textcraft' have more than data.max_prompt_length=99"):
        check(model, "data.max_prompt_length=99", "horizon.max_turns=[1]", "horizon.replay={}")


@pytest.mark.parametrize("wrong", ["", "I do nonsense."])
def test_a_record_that_does_not_solve_its_task_again_is_refused(model, tmp_path, wrong):
    env, item = TextCraft(), TextCraft().tasks("easy_train")[0]
    agent = make_agent(AgentSettings("act"), env.action_format)
    record = to_record(demonstrate(item, env, agent), EpisodeMeta("evaluation", "easy_train", 0, "g", 0, STARTED, 1.0))
    for message in record["messages"][record["prompt_length"] :] if wrong else ():
        message["content"] = wrong if message["role"] == "assistant" else message["content"]
    (tmp_path / "episodes.jsonl").write_text(json.dumps(record))
    changes = ["horizon.max_turns=[1]", "data.max_prompt_length=4000", f"horizon.replay={{records:[{tmp_path}]}}"]
    if wrong:
        with pytest.raises(ConfigError, match=f"{item.id}' does not solve it again"):
            check(model, *changes)
    else:
        assert "1 of 135 tasks have a solved episode" in check(model, *changes)[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["horizon.max_turns=[30]"], "replays nothing: the solved episodes have at most . turns, and .* may take 30"),
        (["horizon.max_turns=[1]", "data.overlong_prompt=truncate_observation"], "which leaves no room"),
        (["horizon.max_turns=[1]", "agent.context.keep=last", "agent.context.turns=1"], "Set agent.context.keep=all"),
    ],
)
def test_a_replay_that_does_nothing_or_shows_other_turns_than_play_is_refused(model, changes, message):
    with pytest.raises(ConfigError, match=message):
        check(model, "data.max_prompt_length=4000", *changes, "horizon.replay={}")


def test_records_of_other_tasks_are_refused(model, tmp_path):
    (tmp_path / "episodes.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"records=\[.*\] have no solved episode of 'textcraft'"):
        check(model, "horizon.max_turns=[1]", f"horizon.replay={{records:[{tmp_path}]}}")


class Shaken(TextCraft):
    """Game that may answer the same actions differently."""

    deterministic = False


class Watched(TextCraft):
    """Game whose oracle reads what the game answers."""

    def oracle(self, item):
        return lambda observation: DemoAction("inventory")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("shaken", "'shaken' is not deterministic. Set horizon.replay=null"),
        ("watched", r"depend on its observations\. .*horizon\.replay\.records"),
    ],
)
def test_an_environment_whose_solutions_cannot_be_replayed_is_refused(model, tmp_path, monkeypatch, env, message):
    write_metadata(tmp_path, "envs-of-a-test", {"verl_agent.envs": {env: f"{__name__}:{env.title()}"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=message):
        check(model, f"env.name={env}", "horizon.max_turns=[1]", "horizon.replay={}")
