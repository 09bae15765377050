"""Test what needs no verl: in a process in which verl cannot be imported, and what pip installs."""

import subprocess
import sys

from tests import ROOT

START = """import runpy, sys
sys.modules |= dict.fromkeys(["verl", "torch", "ray", "vllm", "transformers"])
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def without_verl(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process in which neither verl nor the packages that come with it are found."""
    command = [sys.executable, "-c", START, module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_an_evaluation_of_a_policy_without_a_model_runs(tmp_path):
    recipe = ("--config-dir", "recipes/guess_number", "--config-name", "eval_cpu")
    overrides = ("model.path=oracle", "evaluation.max_tasks=2", f"evaluation.output_dir={tmp_path}")
    ended = without_verl("verl_agent.commands.evaluate", *recipe, *overrides)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "episodes.jsonl").stat().st_size > 0


def test_training_says_that_it_needs_verl():
    recipe = ("--config-dir", "recipes/guess_number", "--config-name", "grpo_cpu")
    ended = without_verl("verl_agent.commands.train", *recipe)
    assert ended.returncode == 2
    assert "needs verl" in ended.stderr and "Run `make setup`" in ended.stderr


def test_a_plain_installation_asks_for_no_package_of_training(tmp_path):
    subprocess.run([sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path], cwd=ROOT, check=True)
    (listed,) = tmp_path.glob("*.egg-info/requires.txt")
    plain, training = listed.read_text().partition("[")[0], listed.read_text().partition("[train]")[2].partition("[")[0]
    assert "aiohttp" in plain
    assert not {"verl", "torch", "ray", "numpy", "matplotlib"} & {
        line.rstrip("<>=.,0123456789") for line in plain.split()
    }
    assert "verl==" in training and "TransferQueue" in training
