"""Tests that a pretrained model learns on two CPU cores, in hours of work.

The runs are in `runs/long_*` of the repository, by commit, so an interrupted test resumes.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from verl_agent.results.comparison import compare, validation_gain
from verl_agent.results.statistics import Estimate
from verl_agent.trace.record_files import read_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


def run(module: str, recipe: str, *overrides: str) -> None:
    folder, name = recipe.split("/")
    config = ["--config-dir", str(ROOT / "recipes" / folder), "--config-name", name]
    subprocess.run([sys.executable, "-m", module, *config, *overrides], cwd=ROOT, check=True)


def commit() -> str:
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()


def gain(folder: Path) -> Estimate:
    """Return the success rate of the last validation of a run minus that of the first, paired by task."""
    comparison = validation_gain(read_records(folder / "episodes"))
    assert comparison is not None
    return comparison[2].difference


def test_grpo_after_sft_raises_success_on_held_out_goals():
    warm, folder = ROOT / f"runs/long_textcraft_sft_{commit()}", ROOT / f"runs/long_textcraft_{commit()}"
    run("verl_agent.commands.sft", "textcraft/sft_cpu", f"trainer.default_local_dir={warm}")
    model = f"actor_rollout_ref.model.path={warm}"
    run("verl_agent.commands.train", "textcraft/scaling_inter_cpu", model, f"trainer.default_local_dir={folder}")
    difference = gain(folder)
    assert difference.tasks >= 100
    assert difference.low > 0
    assert difference.mean >= 0.15


def test_grpo_without_sft_raises_success():
    folder = ROOT / f"runs/long_guess_number_{commit()}"
    run("verl_agent.commands.train", "guess_number/grpo_cpu", f"trainer.default_local_dir={folder}")
    assert gain(folder).low > 0


def test_rounds_of_agentevol_raise_success():
    folder = ROOT / f"runs/long_textcraft_evolve_{commit()}"
    run("verl_agent.commands.evolve", "textcraft/evolve_cpu", f"evolve.output_dir={folder}")
    rounds = json.loads((folder / "evolve.json").read_text())["rounds"]
    success = [result["result"]["success"]["mean"] for result in rounds]
    assert len(success) == 4
    assert success[-1] > success[0] + 0.1
    assert rounds[-1]["gain"]["difference"]["low"] > 0


def test_dpo_on_own_episodes_raises_success():
    root = ROOT / f"runs/long_textcraft_dpo_{commit()}"
    run("verl_agent.commands.sft", "textcraft/sft_cpu", f"trainer.default_local_dir={root}/sft")
    run(
        "verl_agent.commands.evaluate",
        "textcraft/explore_cpu",
        f"model.path={root}/sft",
        f"evaluation.output_dir={root}/explore",
    )
    learn = [f"model.path={root}/sft", f"preference.records={root}/explore", f"trainer.default_local_dir={root}/dpo"]
    run("verl_agent.commands.dpo", "textcraft/dpo_cpu", *learn)
    for name in ("sft", "dpo"):
        output = f"evaluation.output_dir={root}/{name}_eval"
        run(
            "verl_agent.commands.evaluate",
            "textcraft/eval_cpu",
            f"model.path={root}/{name}",
            output,
            "evaluation.samples=2",
        )
    before, after = (list(read_records(root / f"{name}_eval/episodes.jsonl")) for name in ("sft", "dpo"))
    assert compare(before, after)[-1].difference.low > 0
