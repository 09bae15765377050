"""A command line that does not compose is answered with the setting that was meant."""

import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes" / "guess_number"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["grpo_cpu", "trainer.total_training_step=3"],
            "trainer.total_training_step is not a setting of this recipe. Did you mean 'total_training_steps'?",
        ),
        (
            ["grpo_cpu", "env.options.tolerat=true"],
            "env.options.tolerat is not a setting of this recipe. Did you mean 'tolerant'? To set it all the same: "
            "+env.options.tolerat=true",
        ),
        (["grpo_cpuu"], f"Cannot find primary config 'grpo_cpuu' in {RECIPES}. Did you mean 'grpo_cpu'?"),
        (["grpo_cpu", "trainer.total_training_steps"], "Error parsing override 'trainer.total_training_steps'"),
        (
            ["grpo_cpu", "+overlay/algo=rloo", "--cfg", "job"],
            "+overlay/algo=rloo: 'overlay/algo' is no group of overlays. Groups: overlay/algorithm, ",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_hydra_refuses_is_explained(arguments, says, tmp_path):
    name, *overrides = arguments
    command = [sys.executable, "-m", "verl_agent.commands.train", "--config-dir", str(RECIPES), "--config-name", name]
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {says}"), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
