"""Supervised training and DPO on two ranks of torchrun: the losses of one rank, and a killed run that resumes."""

from pathlib import Path

import psutil
import pytest

from tests.support.offline_runs import finished, metrics, start, write_offline_recipes
from tests.support.training_runs import last_step
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROW_A_RANK = "data.micro_batch_size_per_gpu=1"
COMPARED = ("train/loss", "train/grad_norm")
TOLERANCE = 1e-4
"""Largest difference relative to one rank. Sums of float32 have another order on two ranks."""


@pytest.mark.parametrize(("command", "before", "after"), [("sft", 2, 2), ("dpo", 2, 2), ("sft", 2, 1), ("dpo", 1, 2)])
def test_two_ranks_train_like_one_also_after_a_kill(tmp_path: Path, command: str, before: int, after: int) -> None:
    """The killed run has `before` ranks, and the one that resumes it `after`."""
    write_offline_recipes(tmp_path)
    save = ["trainer.save_freq=1", ROW_A_RANK, "trainer.total_training_steps=8"]
    one, two, killed = (tmp_path / name for name in ("one", "two", "killed"))
    finished(start(tmp_path, command, *save, f"trainer.default_local_dir={one}"))
    shown = finished(start(tmp_path, command, *save, f"trainer.default_local_dir={two}", ranks=2))
    assert shown.count("estimated:") == 1, "one rank prints"
    run = start(tmp_path, command, *save, f"trainer.default_local_dir={killed}", ranks=before)
    wait_until(lambda: last_step(killed) >= 2, 240, running=run, every_s=0.02)
    for rank in [process for process in psutil.process_iter() if _is_rank(process, killed)]:
        rank.kill()
    run.communicate()
    step = last_step(killed)
    assert step < 8
    again = finished(start(tmp_path, command, *save, f"trainer.default_local_dir={killed}", ranks=after))
    assert f"resuming after step {step} of 8" in again
    assert ("resharding the checkpoint" in again) is (before != after)
    expected = metrics(one)
    assert len(expected) == 8
    for run_folder in (two, killed):
        found = metrics(run_folder)
        assert {*found} == {*expected}
        for number, values in expected.items():
            for name in COMPARED:
                assert found[number][name] == pytest.approx(values[name], rel=TOLERANCE), (
                    run_folder.name,
                    number,
                    name,
                )


def _is_rank(process: psutil.Process, run: Path) -> bool:
    try:
        return any(str(run) in argument for argument in process.cmdline())
    except psutil.Error:
        return False
