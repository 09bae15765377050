"""Tests of a round of AgentEvol over two environments that is killed in the second one and resumed.

Takes minutes on two cores. The model is small and random, so the round keeps all its episodes.
"""

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models import write_byte_model
from tests.support.training_runs import command_line, run_environment, wait_for_end
from tests.support.waiting import wait_until
from verl_agent.models.lora import has_adapters
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.results.folder import RECORDS
from verl_agent.runs.identity import read_settings
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

TASKS, SAMPLES = 6, 2
EVOLVE = """
defaults: [agent_evolve, _self_]
evolve:
  explore:
    - {recipe: numbers.yaml, tasks: small_train, samples: 2, max_tasks: 6}
    - {recipe: crafts.yaml, tasks: easy_train, samples: 2, max_tasks: 6}
  learn: learn.yaml
  min_reward: 0.0
  weight: none
  validate: false
  rounds: 1
  output_dir: rounds
"""
PLAY = """
defaults: [agent_eval, cpu_eval, _self_]
env: {name: ENV, options: OPTIONS}
agent: {name: act, options: {instructions: false}}
horizon: {eval_max_turns: 2}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}
data: {max_prompt_length: 700, max_response_length: 300}
engine: {dtype: float32}
evaluation: {tasks: HELD_OUT, concurrency: 2}
"""
LEARN = """
defaults: [agent_sft, cpu_sft, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {tolerant: true}}
agent: {name: act, options: {instructions: false}}
data: {train_max_samples: 4, train_batch_size: 4, micro_batch_size_per_gpu: 4, max_length: 1024}
model: {path: model, lora_rank: 4, lora_alpha: 8, target_modules: all-linear}
engine: {mixed_precision: {param_dtype: float32}}
optim: {lr: 1.0e-3}
trainer: {total_epochs: 1}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of the rounds, after one kill and a resumed run to the end."""
    root = tmp_path_factory.mktemp("evolve")
    write_byte_model(root / "model", ["Guess a whole number from 1 to 12. Higher. Lower."], vocabulary=300)
    numbers = PLAY.replace("ENV", "guess_number").replace("OPTIONS", "{tolerant: true}")
    crafts = PLAY.replace("ENV", "textcraft").replace("OPTIONS", "{prompt: short, distractors: 0}")
    for name, text in (
        ("evolve", EVOLVE),
        ("learn", LEARN),
        ("numbers", numbers.replace("HELD_OUT", "small_test")),
        ("crafts", crafts.replace("HELD_OUT", "easy_test")),
    ):
        (root / f"{name}.yaml").write_text(text)
    command, environment = command_line("evolve", root, "evolve"), run_environment(root)

    first = subprocess.Popen(command, env=environment, cwd=root)
    second = root / "rounds/round_1/explore/textcraft" / RECORDS
    wait_until(lambda: second.is_file() and second.stat().st_size, 1500, running=first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    wait_for_end(root)
    assert "1/explore/0" in done_stages(root) and "1/learn/0" not in done_stages(root)
    with (root / "output.txt").open("w") as output:
        subprocess.run(command, env=environment, cwd=root, check=True, timeout=1500, stdout=output)
    yield root / "rounds"
    assert wait_for_end(root) == []


def done_stages(root: Path) -> list[str]:
    return list(json.loads((root / "rounds/state.json").read_text())["done"])


def explored_records(rounds: Path, env: str) -> list[EpisodeRecord]:
    return list(read_records(rounds / "round_1/explore" / env / RECORDS))


@pytest.mark.parametrize("env", ["guess_number", "textcraft"])
def test_every_episode_is_played_once_before_or_after_the_kill(rounds, env):
    played = Counter((record["task"], record["sample"]) for record in explored_records(rounds, env))
    assert len(played) == TASKS * SAMPLES and set(played.values()) == {1}
    assert {record["purpose"] for record in explored_records(rounds, env)} == {"collection"}


def test_round_learns_from_both_environments_and_the_base_set(rounds):
    assert done_stages(rounds.parent) == sorted(["0/learn/0", "1/explore/0", "1/explore/1", "1/learn/0"])
    output = " ".join((rounds.parent / "output.txt").read_text().split())
    assert re.search(r"4 episodes of the oracle, \d+ recorded of guess_number, \d+ recorded of textcraft", output)
    base, both = (read_settings(rounds / f"round_{number}/learn")["recorded episodes"] for number in (0, 1))
    assert base != both


def test_policies_trained_with_adapters_are_complete_models(rounds):
    for number in (0, 1):
        assert not has_adapters(resolve_checkpoint(rounds / f"round_{number}/learn"))
