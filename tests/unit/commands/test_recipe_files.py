"""Test recipes that are links, of another suffix or encoding, with a tilde, or with characters that YAML refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from verl_agent.commands.recipes import check_recipe, copy_recipes, recipes_folder
from verl_agent.config.composing import compose_recipe, read_yaml
from verl_agent.errors import ConfigError
from verl_agent.evaluation.suite.settings import read_suite
from verl_agent.study.settings import read_study

WRONG = {
    "latin-1": ("# für\n".encode("latin-1"), "is not UTF-8"),
    "utf-16": ("# fur\n".encode("utf-16"), "is not UTF-8"),
    "control character": (b"# bell \x07\n", r"U\+0007|#x0007"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (copied,) = copy_recipes(["guess_number"], tmp_path)
    return copied


@pytest.mark.parametrize(("begin", "message"), WRONG.values(), ids=WRONG)
def test_a_recipe_in_another_encoding_raises_config_error_that_names_it(begin: bytes, message: str, folder: Path):
    file = folder / "mine.yaml"
    file.write_bytes(begin + (folder / "eval_cpu.yaml").read_bytes())
    with pytest.raises(ConfigError, match=message) as raised:
        compose_recipe(file, "agent_eval")
    assert str(file) in str(raised.value)


def test_the_message_names_an_included_file_in_another_encoding(folder: Path):
    (folder / "mine.yaml").write_text("defaults: [agent_eval, own, _self_]\n")
    (folder / "own.yaml").write_bytes("# für\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"own\.yaml is not UTF-8"):
        compose_recipe(folder / "mine.yaml", "agent_eval")


def test_a_command_explains_a_recipe_in_another_encoding(folder: Path):
    (folder / "mine.yaml").write_bytes("# für\n".encode("latin-1"))
    command = [sys.executable, "-m", "verl_agent.commands.evaluate", "--config-dir", str(folder)]
    done = subprocess.run([*command, "--config-name", "mine"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "mine.yaml is not UTF-8" in done.stderr and "Traceback" not in done.stderr


def test_a_tilde_in_a_recipe_is_the_home_folder(folder: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    (folder / "mine.yaml").write_text("defaults: [agent_eval, _self_]\nevaluation: {compare_with: ~/earlier}\n")
    assert compose_recipe(folder / "mine.yaml", "agent_eval").evaluation.compare_with == str(folder / "earlier")


def test_a_command_writes_into_the_home_folder_that_a_tilde_names(tmp_path: Path):
    recipe = ["--config-dir", str(ROOT / "recipes/guess_number"), "--config-name", "eval", "model.path=oracle"]
    tasks = ["evaluation.tasks=small_test", "evaluation.max_tasks=1", "env.hosts.where=inline"]
    command = [sys.executable, "-m", "verl_agent.commands.evaluate", *recipe, *tasks, "evaluation.output_dir='~/out'"]
    variables = os.environ | {"HOME": str(tmp_path / "home")}
    subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=True)
    assert (tmp_path / "home/out/evaluation.json").is_file() and not (tmp_path / "~").exists()


@pytest.mark.parametrize("read", [read_study, read_suite])
@pytest.mark.parametrize(("begin", "message"), WRONG.values(), ids=WRONG)
def test_a_suite_or_study_in_another_encoding_raises_config_error(read, begin: bytes, message: str, tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_bytes(begin)
    with pytest.raises(ConfigError, match=message) as raised:
        read(file) if read is read_study else read(file, ())
    assert str(file) in str(raised.value)


def test_a_yaml_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("evaluations: {a: 1}\r\n", encoding="utf-8-sig")
    assert read_yaml(file, "") == {"evaluations": {"a": 1}}


def test_a_linked_recipe_is_that_of_its_file(folder: Path, tmp_path: Path):
    link = tmp_path / "mine.yaml"
    link.symlink_to(folder / "eval_cpu.yaml")
    command = [str(Path(sys.executable).with_name("verl-agent")), "eval", str(link), "--cfg", "job"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "name: guess_number" in done.stdout, done.stderr


def test_a_recipe_command_says_what_it_does_before_it_fails_and_nothing_beside_a_printed_config(folder: Path):
    command = [str(Path(sys.executable).with_name("verl-agent")), "eval", str(folder / "eval_cpu.yaml")]
    failed = subprocess.run([*command, "nothing=1"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2 and failed.stderr.startswith("error: nothing is not a setting")
    assert failed.stdout == f"checking {folder / 'eval_cpu.yaml'}, its tasks and the machine ...\n"
    printed = subprocess.run([*command, "--cfg", "job"], capture_output=True, text=True, check=True)
    assert yaml.safe_load(printed.stdout)["env"]["name"] == "guess_number"


def test_a_recipe_of_another_suffix_is_refused_with_the_allowed_one(tmp_path: Path):
    file = tmp_path / "mine.yml"
    file.write_bytes((recipes_folder() / "guess_number/eval_cpu.yaml").read_bytes())
    with pytest.raises(ConfigError, match=r"mine\.yml' is not allowed\. Allowed: a file \*\.yaml"):
        check_recipe(file)
