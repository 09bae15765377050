"""Test imports of Harbor: trials of a job's folder, and trajectories in ATIF."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import imported, refusals, write

STEPS: list[dict[str, Any]] = [
    {"step_id": 1, "source": "user", "message": "Fix it.", "timestamp": "2026-05-01T10:00:00Z"},
    {
        "step_id": 2,
        "source": "agent",
        "message": "I look.",
        "reasoning_content": "Where?",
        "tool_calls": [{"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "ls"}}],
        "observation": {"results": [{"source_call_id": "1", "content": "a.py"}]},
        "metrics": {"completion_tokens": 12, "prompt_tokens": 90},
    },
    {"step_id": 3, "source": "agent", "message": "Done."},
]
TRAJECTORY = {"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1", "model_name": "m"}, "steps": STEPS}


def test_a_trial_of_harbor_has_the_reward_of_its_verifier(tmp_path):
    for name, result in (
        ("one", {"task_name": "org/fix", "verifier_result": {"rewards": {"reward": 1.0, "style": 0.5}}}),
        ("two", {"task_name": "org/fix", "exception_info": {"exception_type": "Timeout", "exception_message": "60 s"}}),
    ):
        (tmp_path / "job" / name / "agent").mkdir(parents=True)
        (tmp_path / "job" / name / "result.json").write_text(json.dumps(result))
        (tmp_path / "job" / name / "agent" / "trajectory.json").write_text(json.dumps(TRAJECTORY))
    (first, second), found = imported(tmp_path / "job", "atif", thoughts=True)
    assert (first["task"], first["reward"], first["model"], first["started_at"][:16]) == (
        *("org/fix", 1.0, "m"),
        "2026-05-01T10:00",
    )
    assert first["turns"][0]["reply"].startswith("<think>\nWhere?\n</think>\n\nI look.\n<tool_call>")
    assert (first["turns"][0]["tokens"], first["turns"][0]["observation"]) == (12, "a.py")
    assert (second["stop"], second["error"]) == ("env_error", "Timeout: 60 s")
    assert found.left_out == {"metrics.prompt_tokens": 2, "score.style": 1}
    (style, _), _ = imported(tmp_path / "job", "atif", score="style")
    assert style["reward"] == 0.5
    assert list(imported(tmp_path / "job", "atif", score="stile")[1].refused) == ["no score 'stile'"]


def test_a_trial_with_a_damaged_result_is_refused_by_its_name_and_the_others_are_kept(tmp_path):
    for name, result in (("bad", '{"task_name": "org/f'), ("good", '{"task_name": "org/fix"}')):
        (tmp_path / "job" / name / "agent").mkdir(parents=True)
        (tmp_path / "job" / name / "result.json").write_text(result)
        (tmp_path / "job" / name / "agent" / "trajectory.json").write_text(json.dumps(TRAJECTORY))
    (record,), found = imported(tmp_path / "job", "atif")
    assert (record["task"], list(found.refused)) == ("org/fix", ["a damaged result.json"])
    (refused,) = tmp_path.glob("*/refused.txt")
    assert refused.read_text().startswith("bad/agent/trajectory.json: ")


def test_copied_steps_are_the_prompt_and_steps_without_a_model_have_another_author(tmp_path):
    steps = [{**STEPS[0]}, {**STEPS[1], "is_copied_context": True}, {**STEPS[1]}, {**STEPS[2], "llm_call_count": 0}]
    file = write(
        tmp_path / "a.jsonl", [{**TRAJECTORY, "steps": [{**one, "step_id": n} for n, one in enumerate(steps, 1)]}]
    )
    (record,), _ = imported(file, "atif")
    assert (record["prompt_length"], len(record["turns"])) == (3, 2)
    assert record["turns"][1]["author"] == "overseer"


def trial(folder: Path, result: Any, files: Sequence[str] = ("agent/trajectory.json",)) -> None:
    """Write a trial's folder with `result.json` and trajectories."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(TRAJECTORY))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps({"task_name": folder.name, **result}))


REWARDED = {"verifier_result": {"rewards": {"reward": 1.0}}}


def test_a_trial_is_one_episode_and_its_other_trajectories_are_counted_by_name(tmp_path):
    sides = ("trajectory.summarization-1-summary.json", "trajectory.summarization-2-summary.json")
    names = ["agent/trajectory.json", *(f"agent/{one}" for one in sides), "user-agent/trajectory.json"]
    trial(tmp_path / "job" / "a", REWARDED, [*names, "artifacts/logs/agent/trajectory.json"])
    (record,), found = imported(tmp_path / "job", "atif")
    assert (record["task"], record["reward"]) == ("a", 1.0)
    counts = {name: found.left_out[name] for name in found.left_out if name.endswith(".json")}
    assert counts == {
        "trajectory.summarization-N-summary.json": 2,
        "user-agent/trajectory.json": 1,
        "trajectory.json": 1,
    }


def test_a_trajectory_that_continues_in_another_file_is_refused(tmp_path):
    trial(tmp_path / "job" / "a", REWARDED)
    trial(tmp_path / "job" / "b", REWARDED, ["agent/trajectory.json", "agent/trajectory.cont-1.json"])
    part = {**TRAJECTORY, "continued_trajectory_ref": "trajectory.cont-1.json"}
    (tmp_path / "job" / "b" / "agent" / "trajectory.json").write_text(json.dumps(part))
    records, found = imported(tmp_path / "job", "atif")
    assert (len(records), found.left_out["trajectory.cont-N.json"]) == (1, 1)
    assert dict(found.refused) == {"a trajectory that continues in another file": 1}


@pytest.mark.parametrize(
    ("result", "stop"),
    [
        ({"exception_info": {"exception_type": "ApiRateLimitError", "exception_message": "429"}}, "env_error"),
        ({"exception_info": {"exception_type": "AgentTimeoutError", "exception_message": "60 s"}}, "terminated"),
        ({"reward_valid": False, "exception_info": {"exception_type": "AgentTimeoutError"}}, "env_error"),
        ({"reward_valid": True, "exception_info": {"exception_type": "Unheard"}}, "terminated"),
        ({"exception_info": {"exception_type": "Unheard", "policy": {"has_valid_reward": True}}}, "terminated"),
        ({"reward_valid": False}, "env_error"),
    ],
)
def test_a_trial_whose_reward_harbor_holds_for_invalid_is_an_environment_error(tmp_path, result, stop):
    trial(tmp_path / "job" / "a", {"verifier_result": {"rewards": {"reward": 0.0}}, **result})
    (record,), found = imported(tmp_path / "job", "atif", reward=1.0)
    assert (record["stop"], "reward" in record["unknown"], record["success"]) == (stop, stop == "env_error", False)
    kept = "exception_info" in result and stop == "terminated"
    assert sum(count for name, count in found.left_out.items() if name.startswith("exception.")) == kept


def test_the_steps_of_a_trial_have_their_own_task_reward_and_error(tmp_path):
    steps = [
        {"step_name": "build", "verifier_result": {"rewards": {"reward": 0.5}}},
        {"step_name": "test", "exception_info": {"exception_type": "ApiError", "exception_message": "no answer"}},
        {"step_name": "ship"},
    ]
    names = [f"steps/{name}/agent/trajectory.json" for name in ("build", "test", "other")]
    trial(tmp_path / "job" / "a", {**REWARDED, "reward_valid": False, "step_results": steps}, names)
    (build, test), found = imported(tmp_path / "job", "atif")
    assert (build["task"], build["reward"], build["stop"]) == ("a/build", 0.5, "terminated")
    assert (test["task"], test["stop"], test["error"]) == ("a/test", "env_error", "ApiError: no answer")
    assert dict(found.refused) == {"a step without a trajectory": 1, "a step that result.json does not have": 1}
    (single,), _ = imported(tmp_path / "job" / "a" / "steps" / "build" / "agent" / "trajectory.json", "atif")
    assert (single["task"], single["reward"]) == ("a/build", 0.5)


def test_a_trial_without_a_trajectory_is_refused_with_its_error(tmp_path):
    trial(tmp_path / "job" / "a", REWARDED)
    trial(
        tmp_path / "job" / "b", {"exception_info": {"exception_type": "SandboxError", "exception_message": "gone"}}, []
    )
    (tmp_path / "job" / "c").mkdir()
    (tmp_path / "job" / "c" / "trial.log").write_text("killed")
    (tmp_path / "job" / "result.json").write_text('{"n_total_trials": 3}')
    records, found = imported(tmp_path / "job", "atif")
    assert (len(records), dict(found.refused)) == (1, {"a trial without a trajectory": 2})
    (refused,) = tmp_path.glob("*/refused.txt")
    assert refused.read_text().startswith("b: a trial without a trajectory: SandboxError: gone\nc: ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": "ATIF-v1.9"}, "no ATIF 1.0 to 1.8"),
        ({"schema_version": None}, "no ATIF 1.0 to 1.8"),
        ({"steps": [STEPS[0], STEPS[2]]}, "step_ids that are not 1, 2, 3: step 2 has the step_id 3"),
        ({"steps": None}, "no steps"),
        ({"steps": {}}, "steps that is not a list: found {}"),
        ({"steps": ["a"]}, "a value that is no object"),
        ({"steps": [STEPS[0], {**STEPS[2], "step_id": 2, "reasoning_content": "Hm", "message": ""}]}, "an empty reply"),
        ({"steps": [{**STEPS[0], "timestamp": "noon"}]}, "timestamp that is no time"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("thoughts", [False, True])
def test_a_trajectory_of_another_form_is_refused(tmp_path, change, reason, thoughts):
    file = write(tmp_path / "a.jsonl", [{**TRAJECTORY, **change}])
    assert reason in refusals(file, "atif", thoughts=thoughts)
