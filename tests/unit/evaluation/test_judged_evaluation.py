"""Test evaluations whose episodes a judge grades: records, results, resuming, and a judge that is down."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.api_evaluations import evaluated
from tests.support.judged import CRITERIA, verdict
from tests.support.model_server import ModelServer, Said, binary_search, error
from verl_agent.errors import ConfigError, EnvErrorLimitError
from verl_agent.evaluation.run import report_results
from verl_agent.results.scaling import scaling_curves
from verl_agent.trace.record import to_episode


def both(messages: list[Said]) -> str:
    """Play GuessNumber, and judge episodes of one guess as the best."""
    text = messages[0].text
    return verdict(4 if '"turn": 2' in text else 10) if "You grade an episode" in text else binary_search(messages)


def judge(server: ModelServer, **values: object) -> dict[str, object]:
    api = {"name": "fake", "base_url": f"{server.url}/v1", "retries": 0}
    return {"config": {"judge": {"rubric": {"criteria": CRITERIA}, "api": api, "mode": "replace", **values}}}


def test_the_record_has_the_verdict_and_the_results_its_reward(tmp_path: Path):
    with ModelServer(both).running() as server:
        evaluation = evaluated(tmp_path, server, **judge(server, success_score=0.9))
        records, asked = evaluation.records(), len(server.bodies)
        again = evaluated(tmp_path, server, samples=2, **judge(server, success_score=0.9)).records()
    long = [record for record in records if len(record["turns"]) > 1]
    assert long and len(records) == 4
    for record in records:
        (made,) = record["judgements"]
        assert record["reward"] == made["reward"] == pytest.approx(0.55 if record in long else 1.0)
        assert record["success"] is (record not in long) and made["replaced"] == 1.0
        assert [grade["reason"] for grade in made["grades"]] == ["It is.", "So so."]
        assert to_episode(record).judgements[0].score == made["score"]
    assert len(again) == 8 and len(server.bodies) > asked
    report_results(evaluation, Console(quiet=True))
    report = json.loads((tmp_path / "evaluation.json").read_text())
    assert report["success_within_turns"] is report["return_within_turns"] is None
    assert [curve.name for curve in scaling_curves(again)] == ["pass@k", "pass^k"]


def test_a_judge_that_is_down_fails_its_episodes_and_another_start_plays_them(tmp_path: Path):
    down = ModelServer(both, faults=[error(503, "Down.")] * 40)
    with ModelServer(both).running() as server, down.running():
        with pytest.raises(EnvErrorLimitError, match=r"env_error .*the judge fake at http.* failed: .*status 503"):
            evaluated(tmp_path, server, **judge(down))
        down.faults.clear()
        records = evaluated(tmp_path, server, **judge(down)).records()
    assert {record["stop"] for record in records[-4:]} == {"terminated"}
    assert not any("judgements" in record for record in records if record["stop"] == "env_error")


def test_a_rubric_with_another_content_is_another_evaluation(tmp_path: Path):
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text("question: Solved?\n")
    with ModelServer(
        lambda messages: '{"answer": 10}' if "Solved?" in messages[0].text else binary_search(messages)
    ).running() as server:
        settings = judge(server, rubric=str(rubric))
        evaluated(tmp_path / "out", server, max_tasks=1, **settings)
        rubric.write_text("question: Polite?\n")
        with pytest.raises(ConfigError, match="rubric"):
            evaluated(tmp_path / "out", server, max_tasks=1, **settings)
