"""Test success within k turns: one long evaluation gives what separate evaluations give at shorter limits."""

import asyncio
import json
from io import StringIO
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console

from verl_agent.evaluation.job import Evaluation, prepare_evaluation
from verl_agent.evaluation.results import summarize
from verl_agent.evaluation.run import play_pending, report
from verl_agent.evaluation.turns_curve import success_within_turns


def evaluated(folder: Path, turns: int, **options) -> Evaluation:
    """Play random actions, three samples of each of 7 tasks; the seeds do not depend on the turn limit."""
    config = {
        "env": {"name": "guess_number", "hosts": {"where": "inline"}},
        "horizon": {"max_turns": [turns]},
        "episode": {"max_tokens_per_turn": 8},
        "agent": {"name": "act", "options": options},
        "data": {"max_prompt_length": 64, "max_response_length": 64},
        "model": {"path": "random"},
        "engine": {},
        "evaluation": {"output_dir": str(folder), "tasks": "small_test", "max_tasks": 7, "samples": 3},
    }
    evaluation = prepare_evaluation(OmegaConf.create(config))
    asyncio.run(play_pending(evaluation, Console(quiet=True)))
    report(evaluation, Console(file=StringIO()))
    return evaluation


def test_one_long_evaluation_gives_the_success_at_three_shorter_turn_limits(tmp_path):
    curve = success_within_turns(evaluated(tmp_path / "long", 6).records())
    assert list(curve) == [1, 2, 3, 4, 5, 6]
    for turns in (1, 3, 5):
        assert curve[turns] == summarize(evaluated(tmp_path / str(turns), turns).records())[-1].success
    assert curve[1].mean < curve[3].mean < curve[6].mean


def test_the_report_has_the_curve_unless_the_agent_tells_the_turns_left(tmp_path):
    evaluated(tmp_path / "a", 2)
    evaluated(tmp_path / "b", 2, turns_left=True)
    curves = [json.loads((tmp_path / name / "evaluation.json").read_text())["success_within_turns"] for name in "ab"]
    assert list(curves[0]) == ["1", "2"] and curves[0]["2"]["tasks"] == 7
    assert curves[1] is None
