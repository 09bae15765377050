"""An evaluation counts what its records say: rates, intervals, pass@k, comparison by task, and what is left to play."""

import json
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from verl_agent.errors import ConfigError
from verl_agent.evaluation.loop import episode_seed, pending
from verl_agent.evaluation.report import comparison_table, results_table, write_report
from verl_agent.evaluation.results import ALL, compare, final_records, results, success_estimate
from verl_agent.evaluation.statistics import mean_over_items, wilson_interval
from verl_agent.trace.provenance import UNKNOWN, Provenance, git_commit
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_record
from verl_agent.types import Episode, Reply, StepResult, StopReason, TaskItem, Turn


def record(
    task: str, solved: bool = False, sample: int = 0, stop: StopReason = StopReason.TURN_LIMIT, category: str = ""
) -> EpisodeRecord:
    """An episode of two turns, the first of them invalid."""
    turns = [
        Turn(Reply("?", tokens=3), "?", StepResult("what?", info={"invalid_action": 1.0}), 0.0, 0.0),
        Turn(Reply("go", tokens=5), "go", StepResult("done", reward=float(solved), terminated=solved), 0.0, 0.0),
    ]
    reason = StopReason.TERMINATED if solved else stop
    episode = Episode(TaskItem("talk", task, category=category), max_turns=2, turns=turns, stop=reason)
    return to_record(episode, EpisodeMeta("evaluation", "test", 0, task, sample, datetime.now(UTC), 1.0))


def fault(task: str, sample: int = 0, category: str = "") -> EpisodeRecord:
    return record(task, sample=sample, stop=StopReason.ENV_ERROR, category=category)


def shown(renderable) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()


def test_one_sample_a_task_has_the_interval_of_wilson():
    (overall,) = results([record("a", True), record("b", True), record("c"), record("d")])
    assert overall.success == wilson_interval(2, 4)
    assert overall.pass_at == {1: 0.5}


def test_several_samples_a_task_have_the_interval_over_tasks():
    records = [record("a", True, 0), record("a", False, 1), record("b", True, 0), record("b", True, 1)]
    assert results(records)[-1].success.mean == 0.75
    solved = {"a": [1.0, 0.0, 1.0], "b": [1.0, 0.0, 0.0], "c": [0.0, 0.0, 1.0], "d": [1.0, 1.0, 0.0]}
    assert success_estimate(solved) == mean_over_items(solved)


def test_an_interval_over_tasks_stays_within_0_and_1():
    assert (
        results([record("a", True, 0), record("a", False, 1), *[record("b", True, i) for i in (0, 1)]])[-1].success.high
        == 1
    )


def test_many_samples_without_a_success_are_not_certainty():
    assert success_estimate({"a": [0.0] * 9, "b": [0.0] * 9}) == wilson_interval(0, 2)


def test_pass_at_k_is_over_tasks_and_doubles_k():
    records = [record(task, solved=task == "a" and i == 0, sample=i) for task in ("a", "b") for i in range(3)]
    assert results(records)[-1].pass_at == pytest.approx({1: 1 / 6, 2: 1 / 3, 3: 0.5})


def test_categories_come_in_natural_order_and_all_comes_last():
    found = results([record("a", category="depth 10"), record("b", True, category="depth 2")])
    assert [one.category for one in found] == ["depth 2", "depth 10", ALL]
    assert [one.success.mean for one in found] == [1.0, 0.0, 0.5]


def test_faults_are_counted_and_part_of_no_rate():
    found = results([record("a", True), fault("b"), fault("c", category="depth 1")])
    assert (found[0].category, found[0].faults, found[0].success, found[0].turns_mean) == ("depth 1", 1, None, None)
    overall = found[-1]
    assert (overall.items, overall.episodes, overall.faults, overall.success.mean) == (1, 1, 2, 1.0)
    assert overall.stops == {"env_error": 2, "terminated": 1}


def test_only_the_last_try_of_an_episode_counts():
    records = [fault("a"), fault("a"), record("a", True)]
    assert final_records(records) == records[2:]
    assert (results(records)[-1].episodes, results(records)[-1].faults) == (1, 0)


def test_means_are_per_episode_and_invalid_actions_per_turn():
    overall = results([record("a", True), record("b")])[-1]
    means = (overall.turns_mean, overall.tokens_mean, overall.reward_mean, overall.invalid_share)
    assert means == (2.0, 8.0, 0.5, 0.5)


def test_without_records_there_are_no_results():
    assert results([]) == []


def test_a_comparison_pairs_tasks_and_says_how_many_have_no_partner():
    before = [record(task, category="easy") for task in "abcd"] + [record("x", True)]
    after = [record(task, True, category="easy") for task in "abc"] + [record("d", category="easy"), fault("x")]
    easy, overall = compare(before, after)
    assert (easy.category, easy.before, easy.after, easy.difference.mean) == ("easy", 0.0, 0.75, 0.75)
    assert (overall.difference.items, overall.unpaired) == (4, 1)
    assert overall.difference.low < 0.75 < overall.difference.high


def test_a_comparison_without_a_shared_task_is_refused():
    with pytest.raises(ConfigError, match="share no task"):
        compare([record("a")], [record("b")])


ITEMS = [TaskItem("talk", "a"), TaskItem("talk", "b")]


def left(records: list[EpisodeRecord], samples: int = 2) -> list[tuple[str, int]]:
    return [(slot.item.id, slot.sample) for slot in pending(ITEMS, samples, records)]


def test_every_task_is_played_once_before_any_is_played_twice():
    assert left([]) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_recorded_episodes_are_not_played_again():
    assert left([record("a"), record("b", True, sample=1)]) == [("b", 0), ("a", 1)]
    assert left([record("a"), record("b")], samples=1) == []


def test_an_episode_whose_environment_failed_is_played_again():
    assert left([record("a"), fault("b")], samples=1) == [("b", 0)]
    assert left([record("a"), fault("b"), record("b")], samples=1) == []


def test_seeds_differ_by_task_and_sample_and_repeat():
    seeds = {episode_seed(seed, task, sample) for seed in (1, 2) for task in "ab" for sample in (0, 1)}
    assert len(seeds) == 8
    assert episode_seed(1, "a", 0) in seeds


def test_the_table_shows_intervals_and_fits_a_terminal():
    records = [record(task, True, sample, category="depth [1]") for task in "ab" for sample in (0, 1)] + [fault("c")]
    text = shown(results_table(results(records), "talk"))
    assert "1.000 [0.342, 1.000]" in text
    assert "depth [1]" in text
    assert "pass@2" in text
    assert "ended by: terminated 4, env_error 1" in text
    assert "…" not in text


def test_the_comparison_shows_both_sides():
    text = shown(
        comparison_table(compare([record("a"), record("b")], [record("a", True), record("b", True)]), "runs/x")
    )
    assert "compared with runs/x" in text
    assert "1.000 [-0.553, 1.000]" in text, "two tasks that went alike are no certainty"


def test_the_report_is_json_with_all_numbers(tmp_path):
    path = tmp_path / "evaluation.json"
    found = results([record("a", True, category="easy"), fault("b")])
    write_report(path, {"seed": 1}, found, compare([record("a")], [record("a", True)]))
    report = json.loads(path.read_text())
    assert report["seed"] == 1
    assert report["results"][-1]["success"] == {
        "mean": 1.0,
        "low": pytest.approx(0.2065, abs=1e-4),
        "high": 1.0,
        "items": 1,
    }
    assert report["comparison"][0]["difference"]["mean"] == 1.0
    assert [file.name for file in tmp_path.iterdir()] == ["evaluation.json"]


def test_a_report_says_where_it_comes_from(tmp_path):
    origin = Provenance.collect()
    assert set(origin.versions) == {"verl_agent", "verl", "vllm", "torch", "transformers"}
    assert origin.command and origin.machine["cores"] >= 1
    assert git_commit(tmp_path) == UNKNOWN
