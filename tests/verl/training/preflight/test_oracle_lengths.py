"""Tests of the expected episode of a run, which the oracles of its environments play."""

import json
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.composing import recipe
from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import SMOLLM2, resolve_model
from verl_agent.training.preflight.oracle_lengths import mean_episode, measure_oracle

GUESS = ROOT / "recipes/guess_number/grpo_cpu.yaml"
ENTRY = "{{name: {name}, weight: {weight}, label: {label}, train_tasks: {tasks}, eval_tasks: {tasks}}}"


def expected(*entries: str, **changes: int):
    overrides = [f"env.mixture=[{', '.join(entries)}]", *(f"data.{key}={value}" for key, value in changes.items())]
    model = f"actor_rollout_ref.model.path={resolve_model(SMOLLM2)}"
    return mean_episode(RunPlan.read(recipe(GUESS, model, "env.train_tasks=null", *overrides)))


def entry(name: str, tasks: str, weight: int) -> str:
    return ENTRY.format(name=name, weight=weight, label=name, tasks=tasks)


def test_the_expected_episode_follows_the_weights_of_a_mixture_and_its_length():
    guess, craft = ("guess_number", "small_train"), ("textcraft", "easy_train")
    alone = [expected(entry(*one, 1)) for one in (guess, craft)]
    mixed = expected(entry(*guess, 3), entry(*craft, 1))
    assert alone[0] and alone[1] and mixed and alone[1].tokens > 1.5 * alone[0].tokens
    assert mixed.tokens == pytest.approx(0.75 * alone[0].tokens + 0.25 * alone[1].tokens, rel=0.05)
    assert mixed.written == pytest.approx(0.75 * alone[0].written + 0.25 * alone[1].written, rel=0.05)
    short = expected(entry(*craft, 1), max_prompt_length=64, max_response_length=64)
    assert short and short.tokens == 128


def test_the_expected_episode_ends_at_the_lowest_limit_by_task_and_at_the_middle_of_a_group_that_goes_on():
    def tokens(*horizon: str) -> float:
        model = f"actor_rollout_ref.model.path={resolve_model(SMOLLM2)}"
        mean = mean_episode(RunPlan.read(recipe(GUESS, model, *horizon)))
        assert mean
        return mean.tokens

    rungs = "horizon.max_turns=[2,4]"
    by_task = [tokens(rungs, f"horizon.{one}") for one in ("per_task={rule:signal}", "deepen=true")]
    assert by_task == pytest.approx([tokens(f"horizon.max_turns=[{turns}]") for turns in (2, 3)], rel=0.1)


def test_an_environment_without_an_oracle_has_no_expected_episode():
    assert expected(entry("gymnasium", "train", 1)) is None


def test_a_solution_that_its_environment_refuses_is_no_missing_oracle(tmp_path: Path):
    call = {"name": "set_number", "arguments": {"name": "apples", "number": "many"}}
    task = {"id": "a", "split": "train", "prompt": "Set apples.", "check": "true", "solution": [call]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    options = ("actor_rollout_ref.model.path=smollm2-135m", f"env.options.tasks={tmp_path}/tasks.jsonl")
    plan = RunPlan.read(recipe(ROOT / "recipes/mcp/grpo_cpu.yaml", *options, "env.train_tasks=train"))
    with pytest.raises(ConfigError, match=r"call 1 of the solution of the task 'a' .* number = .many. is not allowed"):
        measure_oracle(plan.envs[0], None, 1, 5.0)
