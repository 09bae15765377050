"""Tests of the recipes of the package, of packages that are missing, and of the quickstart without training."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verl_agent.commands.cli import app
from verl_agent.commands.recipes import command_of, copy_hint, copy_recipes, recipes_folder
from verl_agent.commands.terminal import EXTRAS, explain_missing
from verl_agent.errors import ConfigError


def test_list_names_each_recipe_with_its_purpose():
    printed = CliRunner().invoke(app, ["recipes", "list", "guess_number"]).output
    assert "recipes/guess_number/grpo_cpu.yaml" in printed
    assert "/limits" not in printed and "/textcraft" not in printed


@pytest.mark.parametrize(
    ("recipe", "command"),
    [
        ("guess_number/grpo_cpu", "train"),
        ("guess_number/scaling_inter", "train"),
        ("guess_number/explore_cpu", "eval"),
        ("guess_number/sft_cpu", "sft"),
        ("guess_number/dpo_cpu", "dpo"),
        ("textcraft/learn_cpu", "sft"),
        ("textcraft/evolve_cpu", "evolve"),
        ("studies/horizon_babyai", "study run"),
        ("paper27", "suite"),
    ],
)
def test_list_names_the_command_that_runs_a_recipe(recipe, command):
    assert command_of(recipes_folder() / f"{recipe}.yaml") == command


def test_list_shows_a_purpose_of_several_lines_up_to_its_command():
    printed = " ".join(CliRunner().invoke(app, ["recipes", "list", "studies"]).output.split())
    assert "one end early (AdaStop)." in printed and "No seed has run" not in printed


def test_a_copy_onto_the_original_says_that_it_may_be_edited(tmp_path):
    with pytest.raises(ConfigError, match=r"guess_number is the original, which you may edit\. To copy it, give"):
        copy_recipes(["guess_number"], recipes_folder().parent)


def test_an_option_in_place_of_a_recipe_says_what_to_write():
    done = CliRunner().invoke(app, ["sft", "--config-dir", "recipes/textcraft"])
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert "'--config-dir' is an option; only the scripts recipes/*/train.sh" in said and "KEY=VALUE" in said


def test_a_copied_recipe_runs_where_it_was_copied(tmp_path):
    assert copy_recipes(["guess_number"], tmp_path) == [tmp_path / "recipes/guess_number"]
    recipe = ("--config-dir", "recipes/guess_number", "--config-name", "eval_cpu")
    command = [sys.executable, "-m", "verl_agent.commands.evaluate", *recipe, "model.path=oracle", "--cfg", "job"]
    composed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "name: guess_number" in composed.stdout


def test_a_copy_is_not_overwritten(tmp_path):
    copy_recipes([], tmp_path)
    assert (tmp_path / "recipes/paper27.yaml").is_file()
    with pytest.raises(ConfigError, match=r"recipes exists already\. Move it away, or copy into another folder"):
        copy_recipes([], tmp_path)


def test_an_unknown_folder_suggests_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"'textcrft' is no folder of recipes\. Did you mean 'textcraft'\?"):
        copy_recipes(["textcrft"], tmp_path)


@pytest.mark.parametrize(
    ("recipe", "command"),
    [
        ("recipes/textcraft/grpo.yaml", "`verl-agent recipes copy textcraft`"),
        ("recipes/paper27.yaml", "`verl-agent recipes copy`"),
        ("recipes/textcraft/none.yaml", ""),
        ("mine.yaml", ""),
    ],
)
def test_a_recipe_that_only_the_package_has_is_copied_first(recipe, command):
    assert command in copy_hint(Path(recipe)) and bool(copy_hint(Path(recipe))) == bool(command)


def test_a_command_without_its_packages_names_the_extra():
    missing = ModuleNotFoundError("No module named 'uvicorn.config'", name="uvicorn.config")
    for command, extra in EXTRAS.items():
        said = f"{command} needs the package uvicorn, which is not installed: pip install 'verl-agent[{extra}]'."
        assert explain_missing(command, missing) == said
    assert explain_missing("view", ModuleNotFoundError("", name="verl_agent.gone")) is None


WITHOUT_TRAINING = """import sys
sys.modules |= dict.fromkeys(["verl", "ray", "vllm"])
sys.argv = ["verl-agent", "quickstart"]
from verl_agent.commands.cli import app
app()
"""


def test_the_quickstart_plays_and_names_what_training_lacks(tmp_path):
    command = [sys.executable, "-c", WITHOUT_TRAINING]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "success 100" in ended.stdout or "1.000" in ended.stdout
    assert "training needs verl, ray, vllm, which are not installed. Run `" in ended.stderr
    assert not (tmp_path / "recipes").exists()
