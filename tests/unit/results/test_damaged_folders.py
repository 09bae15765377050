"""Test commands on folders of evaluations that have lost records, or whose report is damaged."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.evaluated_games import evaluated
from verl_agent.commands.cli import app
from verl_agent.results.folder import REPORT

COMMANDS = ("failures", "scaling", "leaderboard")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return evaluated(tmp_path_factory.mktemp("finished"), "expensive")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def outcome(command: str, folder: Path) -> tuple[int, str]:
    """Return exit code and output of a command on a folder."""
    into = ["--into", str(folder / "board")] if command == "leaderboard" else []
    result = CliRunner().invoke(app, [command, str(folder), *into])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kept", [0, 10])
def test_records_that_a_report_counts_and_the_folder_has_lost_are_an_error(command: str, kept: int, folder: Path):
    lines = (folder / "episodes.jsonl").read_text().splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text("".join(lines[:kept]))
    code, output = outcome(command, folder)
    assert code == 2 and f"{17 - kept} of 17 records are missing" in output and "run eval again" in output


@pytest.mark.parametrize("command", COMMANDS)
def test_a_line_is_shown_before_the_records_are_read(command: str, folder: Path):
    (folder / "episodes.jsonl").write_text("")
    assert outcome(command, folder)[1].startswith("reading ")


def test_a_leaderboard_of_an_evaluation_without_episodes_is_an_error(folder: Path):
    report = json.loads((folder / REPORT).read_text())
    (folder / REPORT).write_text(json.dumps({**report, "played": 0}))
    (folder / "episodes.jsonl").write_text("")
    code, output = outcome("leaderboard", folder)
    assert code == 2 and "has no episode" in output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("planned_tasks", 5),
        ("planned_tasks", [["7:1"]]),
        ("played", "17"),
        ("config", []),
        ("config", {"env": "guess_number", "evaluation": {}}),
        ("config", {"env": {"name": "guess_number"}, "evaluation": []}),
        ("config", {"env": {"name": "guess_number"}, "evaluation": {"samples": "4"}}),
        ("config", {"env": {"name": "guess_number"}, "evaluation": {"perturb": [1]}}),
        ("config", {"evaluation": {}}),
        ("success_within_turns", 3),
    ],
)
def test_a_report_with_values_of_other_types_is_an_error_that_names_the_key(
    command: str, key: str, value: object, folder: Path
):
    report = json.loads((folder / REPORT).read_text())
    (folder / REPORT).write_text(json.dumps({**report, key: value}))
    code, output = outcome(command, folder)
    assert code == 2 and f"{REPORT}: {key}" in output


@pytest.mark.parametrize(("command", "key"), [("scaling", "success_within_turns"), ("leaderboard", "played")])
def test_a_report_that_lacks_a_key_is_an_error_that_names_it(command: str, key: str, folder: Path):
    report = json.loads((folder / REPORT).read_text())
    del report[key]
    (folder / REPORT).write_text(json.dumps(report))
    code, output = outcome(command, folder)
    assert code == 2 and f"{REPORT} has no '{key}'" in output
