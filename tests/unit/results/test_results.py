"""Test the results of an evaluation: rates, intervals, pass@k, comparison by task, report, and pending episodes."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from verl_agent.errors import ConfigError
from verl_agent.evaluation.loop import pending_episodes
from verl_agent.evaluation.report import comparison_table, results_table
from verl_agent.results.comparison import compare
from verl_agent.results.results import ALL, final_records, summarize
from verl_agent.results.statistics import clustered_wilson_interval, wilson_interval
from verl_agent.trace.provenance import UNKNOWN, Provenance, git_commit, write_result
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose, to_record
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


def env_error(task: str, sample: int = 0, category: str = "") -> EpisodeRecord:
    return record(task, sample=sample, stop=StopReason.ENV_ERROR, category=category)


def placed(episode: EpisodeRecord, purpose: Purpose, step: int, group: str) -> EpisodeRecord:
    """Return a record as an episode of a training run."""
    return {**episode, "purpose": purpose, "step": step, "group": group}


def shown(renderable) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()


def test_one_sample_per_task_gives_the_wilson_interval():
    (overall,) = summarize([record("a", True), record("b", True), record("c"), record("d")])
    assert overall.success == wilson_interval(2, 4)
    assert overall.pass_at == {1: 0.5}


def test_several_samples_per_task_give_the_interval_over_tasks():
    records = [record("a", True, 0), record("a", False, 1), record("b", True, 0), record("b", True, 1)]
    assert summarize(records)[-1].success.mean == 0.75
    assert summarize(records)[-1].success == clustered_wilson_interval({"a": [1.0, 0.0], "b": [1.0, 1.0]})


def test_pass_at_k_is_averaged_over_tasks_for_doubling_k():
    records = [record(task, solved=task == "a" and i == 0, sample=i) for task in ("a", "b") for i in range(3)]
    assert summarize(records)[-1].pass_at == pytest.approx({1: 1 / 6, 2: 1 / 3, 3: 0.5})


def many(tasks: str):
    return [record(task, task == "a", i) for task in tasks for i in range(4)]


def test_pass_at_k_is_for_samples_that_nine_of_ten_tasks_have():
    lost = {("b", 7), ("c", 0)}  # their environment failed
    records = [
        env_error(task, i) if (task, i) in lost else record(task, task == "a", i, category=f"of {task}")
        for task in "abc"
        for i in range(8)
    ]
    results = summarize(records)
    assert results[-1].pass_at == results[-1].pass_hat == pytest.approx(dict.fromkeys((1, 2, 4, 7), 1 / 3))
    assert [list(one.pass_at) for one in results[:-1]] == [[1, 2, 4, 8], [1, 2, 4, 7], [1, 2, 4, 7]]
    text = shown(results_table(results, "talk"))
    assert "pass@4" in text and "pass@8" not in text
    assert "pass@7" in shown(results_table(results[-1:], "talk"))
    once = record("d", category="of d")
    assert "pass@4" in shown(results_table(summarize([*many("abcefghijkl"), once]), "talk"))
    ten = [
        env_error(str(task), i) if (task, i) == (0, 1) else record(str(task), task < 5, i)
        for task in range(10)
        for i in (0, 1)
    ]
    assert summarize(ten)[-1].pass_at == {1: 0.5, 2: pytest.approx(4 / 9)}, "the task with one sample is left out"


def test_categories_are_in_natural_order_with_all_last():
    results = summarize([record("a", category="depth 10"), record("b", True, category="depth 2")])
    assert [one.category for one in results] == ["depth 2", "depth 10", ALL]
    assert [one.success.mean for one in results] == [1.0, 0.0, 0.5]


def test_env_errors_are_counted_and_excluded_from_rates():
    results = summarize([record("a", True), env_error("b"), env_error("c", category="depth 1")])
    assert (results[0].category, results[0].env_errors, results[0].success, results[0].turns_mean) == (
        "depth 1",
        1,
        None,
        None,
    )
    overall = results[-1]
    assert (overall.tasks, overall.episodes, overall.env_errors, overall.success.mean) == (1, 1, 2, 1.0)
    assert overall.stops == {"env_error": 2, "terminated": 1}


def test_episodes_without_a_reward_and_cancelled_ones_are_no_env_errors():
    left_out = [record("a", stop=StopReason.UNRATED), record("b", stop=StopReason.CANCELLED), env_error("c")]
    (overall,) = summarize([*left_out, record("d", True)])
    assert (overall.episodes, overall.env_errors, overall.played, overall.success.mean) == (1, 1, 4, 1.0)
    assert str(overall).endswith(", 1 without a reward, 1 cancelled")
    assert "0 environment errors, 1 without a reward" in str(summarize(left_out[:1])[-1])


def test_an_excluded_episode_is_counted_once():
    refused = reviewed("a", "edited") | {"stop": "request_refused", "success": False}
    (overall,) = summarize([refused, reviewed("b", "edited") | {"stop": "env_error"}])
    assert (overall.operated, dict(overall.refused), overall.env_errors, overall.played) == (2, {}, 0, 2)


def test_action_errors_are_failures_that_are_counted_apart():
    results = summarize([record("a", True), record("b", stop=StopReason.ACTION_ERROR)])
    assert (results[-1].success.mean, results[-1].env_errors) == (0.5, 0)
    text = " ".join(shown(results_table(results, "x")).split())
    assert "action errors: 1 of 2 counted episodes failed at an action that raises the same error" in text
    assert "action errors" not in shown(results_table(summarize([record("a", True)]), "x"))


def test_episodes_that_began_anew_are_named_with_the_bias():
    failed, again = env_error("a"), {**record("a", True), "attempt": 2}
    results = summarize([failed, again, record("b")])
    assert results[-1].begun_anew == 1
    text = " ".join(shown(results_table(results, "x")).split())
    assert "begun anew: 1 of 2 counted episodes" in text and "under-represented" in text
    assert "begun anew" not in shown(results_table(summarize([record("a", True)]), "x"))


def test_only_the_last_attempt_of_an_episode_counts():
    records = [env_error("a"), env_error("a"), record("a", True)]
    assert final_records(records) == records[2:]
    assert (summarize(records)[-1].episodes, summarize(records)[-1].env_errors) == (1, 0)


def test_episodes_of_other_purposes_steps_and_groups_are_further_episodes():
    failed = placed(env_error("a"), "train", 3, "uid-1")
    train = [placed(record("a", True), "train", step, "uid-1") for step in (1, 2, 3)]
    again = placed(record("a"), "train", 3, "uid-2")
    validation = placed(record("a"), "validation", 3, "uid-1")
    overall = summarize([failed, *train, again, validation])[-1]
    assert (overall.tasks, overall.episodes, overall.env_errors, overall.success.mean) == (1, 5, 0, 0.6)


def test_a_retry_with_another_purpose_of_the_evaluation_replaces_the_error():
    failed, retried = env_error("a"), placed(record("a", True), "collection", 0, "a")
    assert summarize([failed, retried])[-1].env_errors == 0


def test_means_are_per_episode_and_the_invalid_rate_per_turn():
    overall = summarize([record("a", True), record("b")])[-1]
    means = (overall.turns_mean, overall.tokens_mean, overall.mean_return.mean, overall.invalid_rate)
    assert means == (2.0, 8.0, 0.5, 0.5)
    assert summarize([]) == []


def test_a_comparison_pairs_tasks_and_counts_unpaired_ones():
    before = [record(task, category="easy") for task in "abcd"] + [record("x", True)]
    after = [record(task, True, category="easy") for task in "abc"] + [record("d", category="easy"), env_error("x")]
    easy, overall = compare(before, after)
    assert (easy.category, easy.before, easy.after, easy.difference.mean) == ("easy", 0.0, 0.75, 0.75)
    assert (overall.difference.tasks, overall.unpaired) == (4, 1)
    assert overall.difference.low < 0.75 < overall.difference.high


def test_a_comparison_without_a_shared_task_raises_config_error():
    with pytest.raises(ConfigError, match="share no task"):
        compare([record("a")], [record("b")])


ITEMS = [TaskItem("talk", "a"), TaskItem("talk", "b")]


def pending_ids(records: list[EpisodeRecord], samples: int = 2) -> list[tuple[str, int]]:
    return [(one.item.id, one.sample) for one in pending_episodes(ITEMS, samples, records)]


def test_the_first_samples_of_all_tasks_precede_the_second():
    assert pending_ids([]) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_recorded_episodes_are_not_pending():
    assert pending_ids([record("a"), record("b", True, sample=1)]) == [("b", 0), ("a", 1)]
    assert pending_ids([record("a"), record("b")], samples=1) == []


def test_an_episode_with_an_env_error_is_pending_again():
    assert pending_ids([record("a"), env_error("b")], samples=1) == [("b", 0)]
    assert pending_ids([record("a"), env_error("b"), record("b")], samples=1) == []


def test_the_table_shows_intervals_and_fits_80_columns():
    records = [record(task, True, sample, category="depth [1]") for task in "ab" for sample in (0, 1)] + [
        env_error("c")
    ]
    text = shown(results_table(summarize(records), "talk"))
    assert "1.000 [0.342, 1.000]" in text
    assert "depth [1]" in text
    assert "2*" in text
    assert "* too few tasks for a reliable interval (below 5)" in text
    assert "pass@2" in text
    assert "ended by: terminated 4, env_error 1" in text
    assert "…" not in text
    assert "*" not in shown(results_table(summarize([record(task) for task in "abcde"]), "talk"))


def test_the_comparison_table_shows_the_interval_of_the_difference():
    text = shown(
        comparison_table(compare([record(task) for task in "abcd"], [record(task, True) for task in "abcd"]), "runs/x")
    )
    assert "compared with runs/x" in text
    assert "* too few tasks" in text
    assert "1.000 [-0.190, 1.000]" in text, "the interval of four equal differences has a width"


def test_the_report_is_written_as_json(tmp_path):
    results = summarize([record("a", True, category="easy"), env_error("b")])
    comparison = compare([record("a")], [record("a", True)])
    facts = {"results": list(map(asdict, results)), "comparison": list(map(asdict, comparison))}
    report = json.loads(write_result(tmp_path / "evaluation.json", 2, facts).read_text())
    assert report["version"] == 2 and report["provenance"]["command"]
    assert report["results"][-1]["success"] == {
        "mean": 1.0,
        "low": pytest.approx(0.2065, abs=1e-4),
        "high": 1.0,
        "tasks": 1,
        "trials": 1.0,
        "too_few": True,
    }
    assert report["comparison"][0]["difference"]["mean"] == 1.0
    assert [file.name for file in tmp_path.iterdir()] == ["evaluation.json"]


def test_provenance_names_command_commit_versions_and_machine(tmp_path):
    provenance = Provenance.collect()
    assert set(provenance.versions) == {"verl_agent", "verl", "vllm", "sglang", "torch", "transformers"}
    assert provenance.command and provenance.machine["cores"] >= 1
    assert git_commit(tmp_path) == UNKNOWN


def reviewed(task: str, decision: str, by: str = "person") -> EpisodeRecord:
    one = record(task, True)
    one["turns"][0]["review"] = {"decision": decision, "by": by, "reason": "", "seconds": 1.0}  # type: ignore[typeddict-item]
    return one


def test_rates_over_approved_episodes_say_how_many_a_person_approved_and_rejected():
    """A person rejects what goes wrong, so rates without the rejected episodes are too high."""
    records = [record("a"), reviewed("b", "approved"), reviewed("c", "approved"), reviewed("d", "rejected")]
    records += [reviewed("e", "rejected", by="rule"), reviewed("f", "edited")]
    results = summarize(records)
    overall = results[-1]
    assert (overall.episodes, overall.operated, overall.approved, overall.rejected) == (4, 2, 2, 1)
    text = " ".join(shown(results_table(results, "talk")).split())
    assert "in 2 counted episodes a person approved actions; in 1 episode a person rejected some" in text
    assert "the rates are too high" in text
    assert "a person approved" not in shown(results_table(summarize([record(task) for task in "abcde"]), "talk"))
    only_approved = shown(results_table(summarize([reviewed("b", "approved")]), "talk"))
    assert "in 1 counted episode a person approved actions" in only_approved and "rejected" not in only_approved


def test_refused_requests_are_counted_by_kind_and_in_no_rate():
    refused = record("a", stop=StopReason.REQUEST_REFUSED) | {"error": "content_filter: not allowed"}
    overall = summarize([refused, record("b", True)])[-1]
    assert (overall.refused, overall.episodes, overall.env_errors) == ({"content_filter": 1}, 1, 0)


def test_actions_that_rules_rejected_are_counted_and_their_policy_is_named():
    records = [reviewed("a", "rejected", "rule"), reviewed("b", "rejected", "rule"), reviewed("c", "approved", "rule")]
    records[0]["turns"][1]["review"] = records[0]["turns"][0]["review"]
    results = summarize([*records, record("d"), env_error("e")])
    overall = results[-1]
    assert (overall.rule_rejected, overall.rule_rejected_episodes, overall.rule_approved) == (3, 2, 1)
    text = " ".join(shown(results_table(results, "talk", "no [craft].yaml")).split())
    assert "rules of no [craft].yaml: 3 actions rejected in 2 of 4 counted episodes, 1 approved" in text
    assert "rules" not in shown(results_table(summarize([record("a")]), "talk"))
