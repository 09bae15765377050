"""Test test-time scaling: curves over turns, samples, tokens and cost, and best-of-n by selectors."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.episodes import played
from tests.support.evaluated_games import evaluated
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.commands.cli import app
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.results.results import summarize
from verl_agent.results.scaling import ScalingCurve, rates_within_turns, scaling_curves, valid_records
from verl_agent.results.scaling_report import describe_ends, describe_selection, read_scaling
from verl_agent.results.selectors import best_of_n, majority
from verl_agent.results.statistics import pass_at_k, wilson_interval
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.trace.token_files import TokenRow, write_tokens
from verl_agent.types import Message, Reply


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> Path:
    """Four samples of random actions on the 17 small test tasks of GuessNumber, at most six turns."""
    return evaluated(tmp_path_factory.mktemp("sampled"), "random", turns=6, samples=4)


def records_of(folder: Path) -> list[EpisodeRecord]:
    return list(read_records(folder / "episodes.jsonl"))


def test_the_curves_of_one_evaluation_have_pass_at_k_and_pass_hat_k(sampled):
    curves = {curve.name: curve for curve in scaling_curves(records_of(sampled))}
    assert list(curves) == ["turns", "pass@k", "pass^k"]  # random actions have no tokens and no cost
    overall = summarize(records_of(sampled))[-1]
    for k, mean in overall.pass_at.items():
        assert curves["pass@k"].points[k].mean == pytest.approx(mean)
        assert curves["pass^k"].points[k].mean == pytest.approx(overall.pass_hat[k])
    assert overall.success is not None and curves["turns"].points[6] == overall.success


@pytest.mark.parametrize("turns", [1, 3])
def test_the_curve_over_turns_equals_separate_evaluations(sampled, tmp_path, turns):
    shorter = evaluated(tmp_path, "random", turns=turns, samples=4)
    (curve,) = (one for one in scaling_curves(records_of(sampled)) if one.name == "turns")
    assert curve.points[turns] == summarize(records_of(shorter))[-1].success


def test_budgets_of_tokens_and_cost_end_at_the_success_rate(tmp_path):
    folder = evaluated(tmp_path, "expensive")  # 4 tokens and 0.01 USD a turn, at most four turns
    curves = {curve.name: curve.points for curve in scaling_curves(records_of(folder))}
    assert max(curves["tokens"]) == 16.0 and max(curves["cost"]) == pytest.approx(0.04)
    assert curves["tokens"][16.0] == curves["turns"][4] and curves["tokens"][8.0] == curves["turns"][2]
    assert curves["tokens"][7.2] == curves["turns"][1] and curves["cost"][0.03] == curves["turns"][3]


def test_an_agent_that_tells_the_turns_left_has_no_curve_over_turns(sampled):
    assert [curve.name for curve in scaling_curves(records_of(sampled), tells_limit=True)] == ["pass@k", "pass^k"]


class Listener:
    """Policy that never solves the task and keeps the messages that it reads."""

    def __init__(self) -> None:
        self.read: list[list[Message]] = []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self.read.append(list(messages))
        return Reply("Action: 99" if len(self.read) % 2 else "I do not know.")


@pytest.mark.parametrize("name", ["act", "raw", "react", "think", "plan", "tools"])
@pytest.mark.parametrize("context", [{"keep": "all"}, {"keep": "last", "turns": 1}, {"keep": "summary", "turns": 1}])
def test_neither_prompt_nor_context_knows_the_turn_limit(name, context):
    def read_with(limit: int) -> list[list[Message]]:
        env, listener = make_env("guess_number"), Listener()
        agent = make_agent(AgentSettings(name, context=context), env.action_format)
        asyncio.run(play_episode(env.tasks("small_test")[0], env, agent, listener, EpisodeLimits(max_turns=limit)))
        return listener.read

    long = read_with(6)
    assert len(long) == 6
    for limit in (1, 3):
        assert read_with(limit) == long[:limit]


def sample(number: int, answer: str, success: bool, turns: int = 1, task: str = "t") -> EpisodeRecord:
    record: EpisodeRecord = json.loads(EXAMPLE)
    record |= {"task": task, "group": task, "sample": number, "success": success, "reward": float(success)}
    record["turns"] = [dict(record["turns"][0], action=answer, reward=float(success))] * turns  # type: ignore[typeddict-item]
    return record


EXAMPLE = json.dumps({
    "version": 2, "purpose": "evaluation", "env": "e", "task": "t", "category": "", "split": "test", "step": 0,
    "group": "t", "sample": 0, "attempt": 1, "model": "m", "started_at": "2026-01-01T00:00:00", "seconds": 0.0,
    "max_turns": 3, "prompt_length": 0, "reward": 0.0, "success": False, "success_reward": 1.0, "stop": "terminated",
    "error": "", "messages": [], "data": {},
    "turns": [{"reply": "", "action": "", "tokens": 0, "truncated_by": None, "observation": "", "reward": 0.0,
               "terminated": True, "info": {}, "generate_s": 0.0, "env_s": 0.0}],
})  # fmt: skip


def test_majority_chooses_the_most_frequent_answer_and_breaks_ties_evenly():
    right, wrong, other = sample(0, "<answer>Mali</answer>", True), sample(1, "Niger", False), sample(2, "Chad", False)
    assert majority([right, wrong, sample(3, "<answer>mali</answer>", True)]) == [0.5, 0.0, 0.5]
    assert majority([right, wrong, sample(3, "niger", False)]) == [0.0, 0.5, 0.5]
    assert majority([right, wrong]) == [0.5, 0.5]
    assert majority([right, wrong, other]) == pytest.approx([1 / 3] * 3)


def test_majority_reads_the_last_action_of_an_episode():
    ends_alike = [sample(number, "Mali", True, turns=2) for number in range(2)]
    for number, one in enumerate(ends_alike):
        one["turns"][0] = {**one["turns"][0], "action": f"look {number}"}
    begins_alike = [sample(number, f"look {number}", False) for number in range(2)]
    assert majority([*begins_alike, *ends_alike]) == [0.0, 0.0, 0.5, 0.5]


def test_only_episodes_of_the_policy_alone_are_valid():
    kept, broken, ended, taken_over = (sample(number, "a", True) for number in range(4))
    broken["stop"], ended["stop"] = "env_error", "operator"
    taken_over["turns"][0]["author"] = "person"
    assert valid_records([kept, broken, ended, taken_over]) == [kept]


def test_selectors_choose_among_samples_and_the_oracle_is_an_upper_bound(tmp_path):
    records = [sample(0, "a", True, turns=2), sample(1, "b", False, turns=3), sample(2, "c", False, turns=3)]
    found = {one.name: one for one in best_of_n(records, tmp_path)}
    assert {name: one.points[3].mean for name, one in found.items() if one.points} == {
        "first": pytest.approx(1 / 3), "majority": pytest.approx(1 / 3), "shortest": 1.0, "oracle": 1.0,
    }  # fmt: skip
    assert found["oracle"].points[2].mean == pytest.approx(pass_at_k(3, 1, 2)) and found["oracle"].upper_bound
    assert found["first"].returns[3].mean == pytest.approx(1 / 3) and found["shortest"].returns[3].mean == 1.0
    assert "return 1.000 [" in describe_selection(found["oracle"])
    assert found["shortest"].points[2].mean == pytest.approx(2 / 3)
    assert "evaluation.logprobs=1" in found["log-prob"].missing


def test_many_samples_have_points_at_powers_of_two_with_the_expected_bound(tmp_path):
    records = [sample(number, "a" if number == 0 else f"other {number}", number == 0) for number in range(20)]
    oracle = next(one for one in best_of_n(records, tmp_path) if one.name == "oracle")
    assert list(oracle.points) == [*range(1, 17), 20]
    assert {k: oracle.points[k].mean for k in (1, 20)} == pytest.approx({1: 1 / 20, 20: 1.0})
    assert oracle.points[16].mean == pytest.approx(pass_at_k(20, 1, 16), abs=0.1)  # 200 subsets at random


def test_the_log_prob_selector_reads_the_recorded_tokens(tmp_path):
    records = [sample(0, "a", False), sample(1, "b", True)]
    rows = [
        TokenRow("t", number, 0, 0, 1, [1, 2, 3], [False, True, True], [-1, 0, 0], {"inference_logprobs": values})
        for number, values in enumerate([[-0.1, -3.0], [-0.2, -0.2]])
    ]
    write_tokens(tmp_path / "tokens" / "a.parquet", rows, str)
    (chosen,) = (one for one in best_of_n(records, tmp_path) if one.name == "log-prob")
    assert (chosen.points[1].mean, chosen.points[2].mean) == (0.5, 1.0)


def test_the_ends_of_a_curve_have_their_unit_in_the_right_number():
    rate = wilson_interval(1, 2)
    one = ScalingCurve("turns", "success within k turns", "turns", {1: rate})
    assert describe_ends(one) == f"{rate} at 1 turn"
    assert describe_ends(replace(one, points={1: rate, 4: rate})) == f"{rate} at 1, {rate} at 4 turns"


def test_the_command_writes_json_and_a_plot(sampled):
    result = CliRunner().invoke(app, ["scaling", str(sampled)])
    assert result.exit_code == 0, result.output
    assert "best of n by oracle (upper bound: it knows the outcome)" in result.output
    value = json.loads((sampled / "scaling.json").read_text())
    assert [curve["name"] for curve in value["curves"]] == ["turns", "pass@k", "pass^k"]
    assert (sampled / "scaling.png").stat().st_size > 5000


def test_the_curves_count_episodes_in_which_a_person_intervened_as_the_evaluation_does(sampled, tmp_path):
    report, records = json.loads((sampled / "evaluation.json").read_text()), records_of(sampled)
    helped = [{**one, "turns": [{**turn, "author": "person"} for turn in one["turns"]]} for one in records]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in helped))
    report["config"]["evaluation"]["count_operated"] = True
    (tmp_path / "evaluation.json").write_text(json.dumps(report))
    assert read_scaling(tmp_path) == read_scaling(sampled)
    report["config"]["evaluation"]["count_operated"] = False
    (tmp_path / "evaluation.json").write_text(json.dumps(report))
    with pytest.raises(ConfigError, match="has no curve: no valid episode"):
        read_scaling(tmp_path)


def test_a_folder_without_an_evaluation_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["scaling", str(tmp_path)])
    assert result.exit_code == 2 and "contains no evaluation.json" in result.output


def test_ten_rewards_of_a_tenth_solve_the_task_at_the_tenth_turn():
    record = played(*((str(turn), "Go on.") for turn in range(10)))
    record |= {"turns": [{**turn, "reward": 0.1} for turn in record["turns"]], "max_turns": 10}
    curve = {turns: success for turns, (success, _) in rates_within_turns([record]).items()}
    assert (curve[9].mean, curve[10].mean) == (0.0, 1.0)
