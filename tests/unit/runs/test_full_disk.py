"""Test that a full disk ends a command with a message. Every write to `/dev/full` fails as on a full disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from verl_agent.errors import ConfigError
from verl_agent.runs.console import exiting, explaining_full_disk


def evaluate(folder: Path) -> subprocess.CompletedProcess[str]:
    """Evaluate the oracle into a folder."""
    command = [sys.executable, "-m", "verl_agent.commands.evaluate", "--config-dir", str(ROOT / "recipes/textcraft")]
    command += ["--config-name", "eval_cpu", "model.path=oracle", "evaluation.max_tasks=2"]
    return subprocess.run(
        [*command, f"evaluation.output_dir={folder}"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "VERL_PLATFORM": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("file", ["episodes.jsonl", "evaluation.log"])
def test_an_evaluation_on_a_full_disk_says_so_and_how_to_resume(tmp_path: Path, file: str):
    (tmp_path / file).symlink_to("/dev/full")
    ended = evaluate(tmp_path)
    assert ended.returncode == (2 if file == "episodes.jsonl" else 0), ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    if ended.returncode:
        assert "no space is left on the disk" in ended.stderr and f"evaluation.output_dir={tmp_path}" in ended.stdout
        (tmp_path / file).unlink()
        again = evaluate(tmp_path)
        assert again.returncode == 0 and "2 episodes to play" in again.stdout, again.stdout + again.stderr


class WorkerError(Exception):
    """Error of a Ray worker, which keeps the original one as `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("worker died")
        self.cause = cause


def write_to_full_disk() -> None:
    Path("/dev/full").write_text("x")


def fail_in_a_worker() -> None:
    try:
        write_to_full_disk()
    except OSError as error:
        raise WorkerError(error) from None


def fail_in_a_library() -> None:
    raise RuntimeError("SafetensorError: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("fail", [write_to_full_disk, fail_in_a_worker, fail_in_a_library])
def test_a_command_on_a_full_disk_exits_with_status_2_and_a_message(fail, capsys):
    with pytest.raises(SystemExit) as ended, exiting():
        fail()
    assert ended.value.code == 2
    assert "run the same command again to resume" in capsys.readouterr().err


def test_another_error_propagates_unless_the_disk_of_the_folder_is_full(tmp_path: Path):
    with pytest.raises(RuntimeError, match="unexpected pos"), explaining_full_disk(tmp_path):
        raise RuntimeError("unexpected pos")
    with pytest.raises(ConfigError, match="no space is left on the disk of /proc"), explaining_full_disk(Path("/proc")):
        raise RuntimeError("unexpected pos")  # torch.save on a full disk; /proc has no free block


def test_the_outer_explanation_keeps_the_folder_of_the_inner_one(tmp_path: Path):
    with (
        pytest.raises(ConfigError, match="the disk of /proc"),
        explaining_full_disk(),
        explaining_full_disk(Path("/proc")),
    ):
        raise RuntimeError("unexpected pos 64 vs 0")


@pytest.mark.parametrize("arguments", [["recipes", "list"], ["envs"]])
def test_a_command_whose_output_is_on_a_full_disk_says_so(arguments: list[str]):
    command = [str(Path(sys.executable).with_name("verl-agent")), *arguments]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2 and "no space is left on the disk" in ended.stderr
    assert "Traceback" not in ended.stderr and "Exception" not in ended.stderr
