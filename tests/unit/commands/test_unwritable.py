"""Test that commands name the option of a place that they cannot write."""

import pytest
from typer.testing import CliRunner

from tests import ROOT
from tests.support.evaluated_games import evaluated
from verl_agent.commands.cli import app


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("leaderboard games", "--into"),
        ("new-env lamps", "--into"),
        ("recipes copy textcraft", "--into"),
        (f"suite {ROOT}/recipes/paper27.yaml --model oracle --only textcraft", "--into"),
        (f"study run {ROOT}/recipes/studies/step_cost_guess_number.yaml", "--out"),
    ],
)
def test_a_folder_that_cannot_be_written_raises_an_error_naming_the_option(tmp_path, monkeypatch, command, option):
    monkeypatch.chdir(tmp_path)
    evaluated(tmp_path / "games", "oracle", max_tasks=1)
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, [*command.split(), option, "file/below"])
    assert result.exit_code == 2 and f"{option}='" in result.stderr and "Name a folder that can" in result.stderr


def test_a_module_that_cannot_be_written_raises_an_error_naming_the_option(tmp_path):
    link = tmp_path / "module.py"
    link.symlink_to(tmp_path / "missing" / "module.py")
    result = CliRunner().invoke(app, ["export-env", "guess_number", "--out", str(link)])
    assert result.exit_code == 2 and "--out=" in result.stderr and "cannot be written" in result.stderr
