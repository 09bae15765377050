"""A real pretrained model learns on two CPU cores: hours of work, in pieces that can be stopped and resumed.

The runs lie in `runs/long_*` of the repository, by commit, so that an interrupted test goes on where it was.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from verl_agent.evaluation.results import compare, validation_gain
from verl_agent.evaluation.statistics import Estimate
from verl_agent.trace.record_files import read_records

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


def run(module: str, recipe: str, *overrides: str) -> None:
    folder, name = recipe.split("/")
    place = ["--config-dir", str(ROOT / "recipes" / folder), "--config-name", name]
    subprocess.run([sys.executable, "-m", module, *place, *overrides], cwd=ROOT, check=True)


def commit() -> str:
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()


def gain(folder: Path) -> Estimate:
    """Success at the last less that at the first validation of a run, by task."""
    found = validation_gain(read_records(folder / "episodes"))
    assert found is not None
    return found[2].difference


def test_reinforcement_raises_success_on_held_out_goals():
    warm, folder = ROOT / f"runs/long_textcraft_sft_{commit()}", ROOT / f"runs/long_textcraft_{commit()}"
    run("verl_agent.commands.sft", "textcraft/sft_cpu", f"trainer.default_local_dir={warm}")
    model = f"actor_rollout_ref.model.path={warm}"
    run("verl_agent.commands.train", "textcraft/scaling_inter_cpu", model, f"trainer.default_local_dir={folder}")
    difference = gain(folder)
    assert difference.tasks >= 100
    assert difference.low > 0
    assert difference.mean >= 0.15


def test_an_untouched_model_learns_without_a_warm_start():
    folder = ROOT / f"runs/long_guess_number_{commit()}"
    run("verl_agent.commands.train", "guess_number/grpo_cpu", f"trainer.default_local_dir={folder}")
    assert gain(folder).low > 0


def test_rounds_of_exploring_and_learning_raise_success():
    folder = ROOT / f"runs/long_textcraft_evolve_{commit()}"
    run("verl_agent.commands.evolve", "textcraft/evolve_cpu", f"evolve.output_dir={folder}")
    rounds = json.loads((folder / "evolve.json").read_text())["rounds"]
    success = [one["result"]["success"]["mean"] for one in rounds]
    assert len(success) == 4
    assert success[-1] > success[0] + 0.1
    assert rounds[-1]["gain"]["difference"]["low"] > 0


def test_preferences_among_its_own_episodes_raise_success():
    at = ROOT / f"runs/long_textcraft_dpo_{commit()}"
    run("verl_agent.commands.sft", "textcraft/sft_cpu", f"trainer.default_local_dir={at}/sft")
    run(
        "verl_agent.commands.evaluate",
        "textcraft/explore_cpu",
        f"model.path={at}/sft",
        f"evaluation.output_dir={at}/explore",
    )
    learn = [f"model.path={at}/sft", f"preference.records={at}/explore", f"trainer.default_local_dir={at}/dpo"]
    run("verl_agent.commands.dpo", "textcraft/dpo_cpu", *learn)
    for name in ("sft", "dpo"):
        where = f"evaluation.output_dir={at}/{name}_eval"
        run(
            "verl_agent.commands.evaluate",
            "textcraft/eval_cpu",
            f"model.path={at}/{name}",
            where,
            "evaluation.samples=2",
        )
    before, after = (list(read_records(at / f"{name}_eval/episodes.jsonl")) for name in ("sft", "dpo"))
    assert compare(before, after)[-1].difference.low > 0
