"""Test success within k turns: one long evaluation gives what separate evaluations give at shorter limits."""

import asyncio
import json
import random
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console

from verl_agent.evaluation.job import Evaluation, prepare_evaluation
from verl_agent.evaluation.run import play_pending, report_results
from verl_agent.results.results import summarize
from verl_agent.results.scaling import rates_within_turns
from verl_agent.results.significance import difference_of_shares
from verl_agent.types import Message


async def searching(messages: Sequence[Message]) -> str:
    """Guess with luck: with chance 0.4 the middle of the range that is left, else any number; it knows no limit."""
    low, high = 1, int(re.findall(r"1 to (\d+)", messages[0]["content"])[0])
    for guess, answer in zip(messages[2::2], messages[3::2], strict=True):
        number = int(guess["content"].split()[-1])
        low = max(low, number + 1) if answer["content"].startswith("Higher") else low
        high = min(high, number - 1) if answer["content"].startswith("Lower") else high
    return f"Action: {(low + high) // 2 if LUCK.random() < 0.4 else LUCK.randint(1, 100)}"


LUCK = random.Random(7)
"""Numbers of `searching`; episodes are played one after the other, so that each run draws the same ones."""


def evaluated(
    folder: Path,
    turns: int,
    model: str = "random",
    tasks: str = "small_test",
    most: int = 7,
    samples: int = 3,
    **options,
) -> Evaluation:
    """Play an evaluation; by default random actions, three samples of each of 7 tasks.

    The seeds of random actions do not depend on the turn limit.
    """
    config = {
        "env": {"name": "guess_number", "hosts": {"where": "inline"}},
        "horizon": {"max_turns": [turns]},
        "episode": {"max_tokens_per_turn": 8},
        "agent": {"name": "act", "options": options},
        "data": {"max_prompt_length": 64, "max_response_length": 64},
        "model": {"path": model},
        "engine": {},
        "evaluation": {
            "output_dir": str(folder),
            "tasks": tasks,
            "max_tasks": most,
            "samples": samples,
            "concurrency": 1,
        },
    }
    evaluation = prepare_evaluation(OmegaConf.create(config))
    asyncio.run(play_pending(evaluation, Console(quiet=True)))
    report_results(evaluation, Console(file=StringIO()))
    return evaluation


def test_the_report_has_the_curve_unless_the_agent_tells_the_turns_left(tmp_path):
    evaluated(tmp_path / "a", 2)
    evaluated(tmp_path / "b", 2, turns_left=True)
    curves = [json.loads((tmp_path / name / "evaluation.json").read_text())["success_within_turns"] for name in "ab"]
    assert list(curves[0]) == ["1", "2"] and curves[0]["2"]["tasks"] == 7
    assert curves[1] is None


def test_the_curve_of_a_policy_that_learns_within_the_episode_agrees_with_separate_evaluations(tmp_path):
    """Other luck in each evaluation, so that the rates agree within intervals only; success depends on the turn."""
    policy = {"model": f"python:{__name__}:searching", "tasks": "test", "most": 100, "samples": 1}
    rated = rates_within_turns(evaluated(tmp_path / "long", 9, **policy).records())
    curve = {turns: success for turns, (success, _) in rated.items()}
    rates = []
    for turns in (2, 4, 8):
        separate = summarize(evaluated(tmp_path / str(turns), turns, **policy).records())[-1].success
        assert separate is not None
        tasks, solved = separate.tasks, round(separate.mean * separate.tasks)
        difference = difference_of_shares(round(curve[turns].mean * tasks), tasks, solved, tasks)
        assert difference.low <= 0 <= difference.high, turns
        rates.append(separate.mean)
    assert rates[0] < rates[1] < rates[2] and curve[2].high < curve[8].low
