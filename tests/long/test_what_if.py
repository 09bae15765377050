"""Test questions to a recorded episode with a real model: SmolLM2 behind vLLM on a CPU, a minute for each start."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.training_runs import command_line, run_environment
from verl_agent.evaluation.what_if.recorded import find_episode
from verl_agent.evaluation.what_if.results import read_results, results_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LENGTHS = ("data.max_prompt_length=192", "data.max_response_length=256", "episode.max_tokens_per_turn=24")


def test_a_model_is_asked_at_a_turn_of_an_episode_of_the_oracle(tmp_path: Path):
    played = ("model.path=oracle", "agent.name=react", *LENGTHS, "evaluation.max_tasks=1", "evaluation.samples=1")
    folder = tmp_path / "played"
    recipe = command_line("evaluate", ROOT / "recipes/guess_number", "eval_cpu", *played)
    environment = run_environment(tmp_path)
    subprocess.run([*recipe, f"evaluation.output_dir={folder}"], check=True, env=environment, cwd=ROOT)
    recorded = find_episode(f"{folder}:1")
    assert [turn["action"] for turn in recorded.record["turns"]] == ["4", "2", "1"]

    def ask(*options: str) -> None:
        program = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "what-if", f"{folder}:1"]
        command = [*program, "--turn", "2", "--samples", "6", *options, "model.path=smollm2-135m"]
        subprocess.run(command, check=True, env=environment, cwd=ROOT)

    ask("--without-thought")
    ask("--oracle")
    ordinary, without, before, after = read_results(results_file(recorded.file))
    assert ordinary["kind"] == without["kind"] == "replies"
    assert len({reply["text"] for reply in ordinary["replies"]}) > 1, "each reply has a seed of its own"
    assert all(reply["text"].startswith("Action:") for reply in without["replies"])
    assert all(0 < reply["tokens"] <= 24 for reply in (*ordinary["replies"], *without["replies"]))
    assert before["kind"] == after["kind"] == "continuations"
    assert (before["action"], after["action"]) == ("2", "1")
    assert all(episode["success"] and episode["actions"] == ["1"] for episode in after["episodes"])
    assert all(episode["actions"][0] == "2" and len(episode["actions"]) > 1 for episode in before["episodes"])
