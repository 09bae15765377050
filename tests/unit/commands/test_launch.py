"""Test that a recipe or command line that does not compose is explained in one message, without a traceback."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import utils as hydra_utils
from typer.testing import CliRunner

from tests import ROOT
from verl_agent.commands.cli import app
from verl_agent.config.composing import check_overlays
from verl_agent.config.explanation import explain_failure
from verl_agent.config.keys import check_kind
from verl_agent.config.search_path import register_config

RECIPES = ROOT / "recipes" / "guess_number"


def launched(command: str, folder: Path, name: str, *overrides: str, cwd: Path) -> str:
    """Start a command that must fail before anything runs; return its message."""
    module = f"verl_agent.commands.{command}"
    arguments = [sys.executable, "-m", module, "--config-dir", str(folder), "--config-name", name, *overrides]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in cwd.rglob("*") if path.is_file()], "a command that fails early leaves files behind"
    return done.stderr.removeprefix("error: ")


def explanation(folder: Path, name: str, *overrides: str, base: str = "agent_base") -> str | None:
    """Compose a recipe that does not compose, in this process; return the message of `run_recipe`."""
    register_config()
    arguments = ["train", "--config-dir", str(folder), "--config-name", name, *overrides]
    try:
        check_overlays(arguments)
        with initialize_config_dir(str(folder), version_base=None):
            config = compose(name, list(overrides))
        check_kind(config, base)
    except Exception as error:  # of any library: `explain_failure` tells them apart
        return explain_failure(error, arguments, base)
    raise AssertionError(f"{name} composes")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grpo_cpu", "trainer.total_training_step=3"], "trainer.total_training_step is not a setting of this recipe."),
        (
            ["grpo_cpu", "rollout.n=4"],
            "rollout.n is not a setting of this recipe. Did you mean actor_rollout_ref.rollout.n",
        ),
        (["grpo_cpu", "train_batch_size=3"], "train_batch_size is not a setting of this recipe. Did you mean data.t"),
        (["grpo_cpu", "data.seed"], "'data.seed' has no value. Allowed: KEY=VALUE, such as data.seed=VALUE."),
        (["grpo_cpu", "data.seed=[4"], "'data.seed=[4' cannot be read: no viable alternative at input '[4'. Close"),
        (
            ["grpo_cpu", "data.seed=Größe"],
            "'data.seed=Größe' cannot be read. A text with such characters needs quotation",
        ),
        (
            ["grpo_cpu", "data.seed=~/x"],
            "'data.seed=~/x' is not allowed: the shell does not expand ~ there. Write data.",
        ),
        (["grpo_cpu", "data.seed=4,8"], "data.seed=4,8 is not allowed. Allowed: 'data.seed=[4,8]' for a list, \"data."),
        (["grpo_cpuu"], f"Cannot find primary config 'grpo_cpuu' in {RECIPES}. Did you mean 'grpo_cpu'?"),
        (["ppo"], f"there is no recipe 'ppo' in {RECIPES}. 'ppo' is an overlay for any recipe: run grpo, for example,"),
        (["grpo_cpu", "env.hosts=[1]"], "env.hosts=[1] is not allowed. Allowed: a section with the keys where, count"),
        (["grpo_cpu", "horizon.max_turns={a: 1}"], "horizon.max_turns={a: 1} is not allowed. Allowed: a list."),
        (["grpo_cpu", "data=3"], "data=3 is not allowed. Allowed: SECTION.KEY=VALUE, such as data.seed=1."),
        (["grpo_cpu", "=3"], "=3 is not allowed. Allowed: SECTION.KEY=VALUE"),
        (["grpo_cpu", "+overlay/ratio=gsp"], "In 'grpo_cpu': Could not find 'overlay/ratio/gsp'"),
        (["grpo_cpu", "+overlay/algo=rloo"], "+overlay/algo=rloo: there is no group 'overlay/algo'. Groups: overlay/"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_an_invalid_command_line_is_explained(arguments, message):
    assert explanation(RECIPES, *arguments).startswith(message)


def test_a_field_that_no_yaml_lists_is_suggested_too():
    message = explanation(RECIPES, "eval_cpu", "env.hosts.num_cpu=1", base="agent_eval")
    assert message == "env.hosts.num_cpu is not a setting of this recipe. Did you mean 'num_cpus'?"


@pytest.mark.parametrize(
    ("base", "recipe", "overrides", "command"),
    [
        ("agent_eval", "grpo_cpu", ["model.path=oracle"], "train"),
        ("agent_eval", "grpo_cpu", [], "train"),
        ("agent_base", "eval_cpu", ["trainer.save_freq=3"], "eval"),
        ("agent_base", "eval_cpu", [], "eval"),
    ],
)
def test_a_recipe_for_another_command_names_that_command(base, recipe, overrides, command):
    message = explanation(RECIPES, recipe, *overrides, base=base)
    assert message.startswith("this is not a recipe for `verl-agent ")
    assert message.endswith(f"Run it with `verl-agent {command}`.")


@pytest.mark.parametrize(
    ("command", "override", "message"),
    [
        ("train", "trainer.default_local_dir=/proc/x", "trainer.default_local_dir='/proc/x' is not allowed: it cannot"),
        ("train", "env.options.tolerat=true", "env.options.tolerat is not an option of 'guess_number'. Did you mean"),
        (
            "evaluate",
            "model.path=oracle",
            "this is not a recipe for `verl-agent eval`: it has no section 'evaluation'.",
        ),
        (
            "train",
            "ray_kwargs.ray_init.runtime_env.env_vars=5",
            "ray_kwargs.ray_init.runtime_env.env_vars=5 is not allowed. Allowed: a section such as {} or {NAME: VALUE}",
        ),
        ("evaluate", "--foo", "unrecognized arguments: --foo. Allowed: KEY=VALUE, all side by side, --cfg job"),
        ("train", "--cfg=all_of_it", "argument --cfg/-c: invalid choice: 'all_of_it'"),
    ],
)
def test_a_command_that_cannot_start_prints_one_message(command, override, message, tmp_path):
    assert launched(command, RECIPES, "grpo_cpu", override, cwd=tmp_path).startswith(message)


def test_variables_of_ray_in_a_recipe_without_ray_are_no_setting(tmp_path):
    override = "+ray_kwargs.ray_init.runtime_env.env_vars=5"
    message = launched("sft", ROOT / "recipes/textcraft", "sft_cpu", override, cwd=tmp_path)
    assert message.startswith("ray_kwargs.ray_init is not a setting: the top level has no 'ray_kwargs'.")


def test_a_folder_in_place_of_a_recipe_lists_its_recipes():
    done = CliRunner().invoke(app, ["train", str(RECIPES)])
    assert done.exit_code == 2
    assert "guess_number' is a folder. Choose one of its recipes: dpo_cpu.yaml, eval.yaml" in " ".join(
        done.output.split()
    )
    assert "env" not in done.output


BASE = "defaults: [agent_grpo, cpu, _self_]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{BASE}env:\n  name: a\n   train_tasks: b\n", "{file}, line 4, column 15 is not valid YAML: mapping values"),
        (f"{BASE}env:\n\tname: a\n", "{file}, line 3, column 1 is not valid YAML: found character '\\t' that cannot "),
        (f"{BASE}env: {{}}\nenv: {{}}\n", "{file}, line 3, column 1 is not valid YAML: found duplicate key env, while"),
        (f"{BASE}env: {{name: '${{a'}}\n", "env.name: no viable alternative at input '${a'"),
        ("defaults: [agent_grpoo]\n", "In 'mine': Could not load 'agent_grpoo'. Did you mean 'agent_grpo'?"),
        ("defaults: agent_grpo\n", "Invalid defaults list in 'mine', defaults must be a list (got str)"),
        ("env: {name: guess_number}\n", "this is not a recipe for `verl-agent train`: it has no section 'actor_roll"),
    ],
)
def test_an_invalid_recipe_is_explained(text, message, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert explanation(tmp_path, "mine").startswith(message.replace("{file}", str(file)))


def test_an_error_of_another_origin_is_not_explained():
    assert explain_failure(ValueError("a bug"), [], "agent_base") is None


def test_hydra_still_gives_its_parser_a_help_that_is_no_string():
    """If this fails, `_accept_lazy_help` can go: Hydra's parser works on Python 3.14 without it."""
    assert "help=LazyCompletionHelp()" in inspect.getsource(hydra_utils.get_args_parser)
