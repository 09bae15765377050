"""Test `verl-agent export-env`: the module that it writes, and what it refuses."""

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verl_agent.commands.cli import app


def test_the_module_exports_one_task_set_one_environment_and_one_harness(tmp_path: Path) -> None:
    """tests/long/test_four_doors.py plays it with verifiers."""
    file = tmp_path / "numbers.py"
    done = CliRunner().invoke(app, ["export-env", "guess_number", "--out", str(file)])
    assert done.exit_code == 0, done.output
    *_, names = ast.parse(file.read_text()).body
    assert isinstance(names, ast.Assign) and ast.literal_eval(names.value) == ["Game", "ReplyHarness", "Tasks"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["guess_number", "--as", "gym"], "--as 'gym' is not allowed. Allowed: verifiers."),
        (["guess_numer"], "Did you mean 'guess_number'"),
        (["guess_number", "--out", "nowhere/a.py"], "the folder nowhere does not exist"),
        (["guess_number", "--out", "taken.py"], "'taken.py' exists"),
    ],
)
def test_what_cannot_be_exported_is_named(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.py").touch()
    done = CliRunner().invoke(app, ["export-env", *arguments])
    assert done.exit_code == 2 and message in " ".join(done.output.split()), done.output
