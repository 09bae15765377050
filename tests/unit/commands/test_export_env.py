"""Test `verl-agent export-env`: the module that it writes, and what it refuses."""

import ast
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verl_agent.commands.cli import app


def test_the_module_exports_one_task_set_one_environment_and_one_harness(tmp_path: Path) -> None:
    """tests/long/test_four_doors.py plays it with verifiers."""
    file = tmp_path / "guesses.py"
    done = CliRunner().invoke(app, ["export-env", "guess_number", "--out", str(file)])
    assert done.exit_code == 0, done.output
    *_, names = ast.parse(file.read_text()).body
    assert isinstance(names, ast.Assign) and ast.literal_eval(names.value) == ["Game", "ReplyHarness", "Tasks"]


def test_the_module_has_agent_options_split_and_limit_and_the_command_its_folder(tmp_path: Path) -> None:
    """vf-eval 0.4.0 played the printed command against a scripted endpoint."""
    folder = tmp_path / "with space"
    folder.mkdir()
    given = ["--agent", "react", "--agent-options", '{"instructions": false}', "--split", "small_test", "--turns", "3"]
    done = CliRunner().invoke(app, ["export-env", "guess_number", *given, "--out", str(folder / "guesses.py")])
    assert done.exit_code == 0, done.output
    (call,) = [node for node in ast.walk(ast.parse((folder / "guesses.py").read_text())) if isinstance(node, ast.Call)]
    settings = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    assert ast.literal_eval(call.args[0]) == "guess_number"
    assert settings == {
        "agent": "react",
        "agent_options": {"instructions": False},
        "split": "small_test",
        "max_turns": 3,
    }
    path, program, module, *options = shlex.split(done.output.splitlines()[-1])
    assert (path, program, module) == (f"PYTHONPATH={folder}", "vf-eval", "guesses")
    assert options[:2] == ["-m", "$MODEL"] and "--no-push" in options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["guess_number", "--as", "gym"], "--as 'gym' is not allowed. Allowed: verifiers."),
        (["guess_numer"], "Did you mean 'guess_number'"),
        (["guess_number", "--out", "nowhere/a.py"], "the folder nowhere does not exist"),
        (["guess_number", "--out", "taken.py"], "'taken.py' exists"),
        (["guess_number", "--out", "numbers.py"], "'numbers.py' would hide the module numbers of Python"),
        (["guess_number", "--out", "my-numbers.py"], "'my-numbers.py' is no module that Python imports"),
        (["guess_number", "--agent", "reacct"], "Did you mean 'react'"),
        (["guess_number", "--agent-options", '{"calm": 1}'], "calm"),
        (["guess_number", "--split", "tset"], "tset"),
        (["guess_number", "--options", '{"hihg": 1}'], "hihg"),
    ],
)
def test_what_cannot_be_exported_is_named(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.py").touch()
    done = CliRunner().invoke(app, ["export-env", *arguments])
    assert done.exit_code == 2 and message in " ".join(done.output.split()), done.output
