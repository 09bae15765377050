"""Test the analysis of failed episodes: behaviors, divergence from the oracle's plan, and sub-goals."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_adapters.scienceworld.adapter import parse_goals
from tests.support.evaluated_games import evaluated
from verl_agent.commands.cli import app
from verl_agent.envs.base import EnvAdapter, SubGoal
from verl_agent.errors import ConfigError
from verl_agent.results.failures import PLAN_ENDED, carried_out, find_failures, leaves_plan, summarize_failures
from verl_agent.results.failures_report import analyze_failures, failures_markdown, read_failures, write_failures
from verl_agent.trace.record_files import read_records
from verl_agent.types import CallResult, DemoAction, Episode, Message, Reply, StepResult, TaskItem, ToolCall, Turn

TABLE = """Completed keys:
Sequential Subgoals:
0\tfalse\t      GoalFind\tfocus on the mixing result (violet paint)
Unordered and Optional Subgoals:
0\ttrue\t  GoalMoveToNewLocation\tmove to a new location
1\tfalse\t  GoalInRoomWithObject\tbe in same location as red paint
"""


class Planned(EnvAdapter):
    """Environment of GuessNumber's records with a plan of its own, and a sub-goal for each action of the plan."""

    plan = ("3", "5")

    def tasks(self, split: str) -> Sequence[TaskItem]:
        return []

    async def reset(self, item: TaskItem) -> list[Message]:
        raise NotImplementedError

    async def step(self, action: str) -> StepResult:
        raise NotImplementedError

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        return [DemoAction(action) for action in self.plan]

    def sub_goals(self, episode: Episode) -> Sequence[SubGoal]:
        taken = {turn.action for turn in episode.turns}
        return [SubGoal("GoalSay", f"say {action}", action in taken) for action in self.plan]


@pytest.fixture(scope="module")
def failed(tmp_path_factory) -> Path:
    """Guesses of 3 in every turn, which solve two of 17 tasks."""
    return evaluated(tmp_path_factory.mktemp("failed"), "cheap")


def turns_of(*actions) -> list[Turn]:
    return [Turn(Reply(""), action, None, 0.0, 0.0) for action in actions]


def test_calls_keep_their_case_and_faulty_ones_are_named():
    plan = [ToolCall("open", {"file": "A.txt", "mode": "R"}), ToolCall("close")]
    found = leaves_plan(
        turns_of(ToolCall("open", {"mode": "R", "file": "A.txt"}), ToolCall("open", {"file": "B"})), plan
    )
    assert found and found.planned == str(plan[1]) and found.action == '{"name": "open", "arguments": {"file": "B"}}'
    lower = leaves_plan(turns_of(ToolCall("open", {"file": "a.txt", "mode": "R"})), plan)
    assert lower and lower.planned == str(plan[0]), "another file"
    faulty = Turn(Reply(""), None, None, 0.0, 0.0, (CallResult(None, errors=("wrong_argument",), name="open"),))
    refused = leaves_plan([faulty], plan)
    assert refused and refused.action == "(faulty call open: wrong_argument)"


def test_the_first_divergence_is_the_first_action_without_a_place_in_the_plan():
    plan = ["open door", "go out", "look"]
    assert leaves_plan(turns_of("Open  door", "look"), plan) is None
    found = leaves_plan(turns_of("open door", "open door", "go out"), plan)
    assert found is not None and (found.turn, found.action, found.planned) == (2, "open door", "go out")
    nothing = leaves_plan(turns_of(None), plan)
    assert nothing is not None and (nothing.turn, nothing.action) == (1, "(no action)")
    assert leaves_plan(turns_of("anything"), []) is None
    after = leaves_plan(turns_of("open door", "look", "anything"), plan)
    assert after is not None and (after.turn, after.action, after.planned) == (3, "anything", PLAN_ENDED)


def test_failed_episodes_are_analyzed_by_category(failed):
    records = list(read_records(failed / "episodes.jsonl"))
    failures = find_failures(records, Planned())
    assert len(failures) == 15 and {failure.missed.text for failure in failures if failure.missed} == {"say 5"}
    first, second = summarize_failures(records, failures)
    assert (first.category, first.failed, first.episodes) == ("1 to 10", 9, 10)
    assert (second.category, second.failed, second.episodes) == ("1 to 7", 6, 7)
    assert first.behaviors["repeated_action"] == (1.0, 0.0)
    assert (first.divergence_turn, first.left_for, first.taken) == (2, {"5": 9}, {"3": 9})
    assert first.sub_goals is not None and (first.sub_goals.mean, first.missed) == (0.5, {"GoalSay": 9})
    text = failures_markdown([first], failures)
    assert "9 of 10 episodes failed. Ended by: turn_limit (9×)." in text
    assert "Due were: 5 (9×). Taken were: 3 (9×)." in text
    assert "| repeated_action | 100% | 0% |" in text and "turn 2: 3, due was 5 | 1 of 2 | say 5 |" in text


def test_a_written_analysis_is_read_again_with_its_sub_goals(failed, tmp_path):
    records = list(read_records(failed / "episodes.jsonl"))
    failures = find_failures(records, Planned())
    summaries = summarize_failures(records, failures)
    write_failures(summaries, failures, tmp_path)
    assert read_failures(tmp_path) == (summaries, failures)


def test_an_episode_after_the_turns_of_another_is_compared_with_no_plan(failed):
    record = {**next(one for one in read_records(failed / "episodes.jsonl") if not one["success"]), "given_turns": 1}
    (found,) = find_failures([record], Planned())  # type: ignore[list-item]
    assert (found.divergence, found.sub_goals) == (None, [])


def test_only_actions_of_the_last_attempt_that_were_carried_out_count(failed):
    record = next(read_records(failed / "episodes.jsonl"))
    turn = record["turns"][0]
    infos = ({"failed_attempts": 1.0}, {"perturbed_fault": 1.0}, {"rejected_action": 1.0}, {}, {})
    record["turns"] = [dict(turn, action=str(n), info=info) for n, info in enumerate(infos)]  # type: ignore[misc]
    assert [one.action for one in carried_out(record).turns] == ["3", "4"]


def test_the_simulators_table_of_sub_goals_is_read():
    assert [(goal.kind, goal.reached) for goal in parse_goals(TABLE)] == [
        ("GoalFind", False), ("GoalMoveToNewLocation", True), ("GoalInRoomWithObject", False),
    ]  # fmt: skip
    assert parse_goals(TABLE)[2].text == "be in same location as red paint"


def test_the_command_writes_json_and_markdown(failed):
    result = CliRunner().invoke(app, ["failures", str(failed), "--category", "1 to 7"])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "1 to 7: 6 of 7 episodes failed; ended by turn_limit (6×); most frequent behavior: no_effect (100%)" in shown
    value = json.loads((failed / "failures.json").read_text())
    assert (len(value["categories"]), len(value["episodes"])) == (1, 6)
    assert "## 1 to 7" in (failed / "failures.md").read_text()
    assert read_failures(failed) == analyze_failures(failed, "1 to 7") and read_failures(failed.parent) is None


def test_actions_that_make_the_environment_fail_are_named(failed):
    records = [{**record, "stop": "action_error"} for record in read_records(failed / "episodes.jsonl")]
    failures = find_failures(records, Planned())
    first, _ = summarize_failures(records, failures)
    assert first.error_actions == {"3": 9}
    assert "Actions that make the environment fail each time: 3 (9×)." in failures_markdown([first], failures)


def test_other_folders_and_categories_are_refused(failed, tmp_path):
    with pytest.raises(ConfigError, match=r"--category 'x' has no episode\. Categories: 1 to 10, 1 to 7"):
        analyze_failures(failed, "x")
    with pytest.raises(ConfigError, match=r"contains no evaluation\.json"):
        analyze_failures(tmp_path)
    renamed = evaluated(tmp_path / "renamed", "cheap", perturb={"rename": True})
    with pytest.raises(ConfigError, match=r"evaluation\.perturb\.rename=true, so its actions"):
        analyze_failures(renamed)


def test_plans_longer_than_the_turn_limit_are_counted(failed):
    """No agent that follows such a plan can solve the task; the limit of these episodes is four turns."""

    class Long(Planned):
        plan = tuple("12345")

    records = list(read_records(failed / "episodes.jsonl"))
    short, long = (summarize_failures(records, find_failures(records, env))[0] for env in (Planned(), Long()))
    assert (short.beyond_limit, long.beyond_limit, long.tasks) == (0, 9, 9)
    assert ["does not finish" in failures_markdown([one], []) for one in (short, long)] == [False, True]
    text = failures_markdown([long], find_failures(records, Long()))
    assert "has more actions than the turn limit in 9 of 9 tasks with a failed episode" in text


def test_replies_that_an_api_refused_are_counted_by_its_reason(failed):
    refused = [record for record in read_records(failed) if not record["success"]][:2]
    for record in refused:
        record["turns"][0]["usage"]["finish"] = "refusal"
        record["turns"][1]["usage"]["finish"] = "stop"
    (summary,) = summarize_failures(refused, find_failures(refused, Planned()))[:1]
    assert "Replies that the API ended: refusal" in failures_markdown([summary], [])
