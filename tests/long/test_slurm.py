"""The job that `verl-agent launch slurm` prints, on a Slurm of two nodes: two ranks train, are preempted and go on.

What is not tested here: the network between machines, and GPUs.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import ROOT
from tests.support.slurm import missing_programs, run, slurm
from tests.support.training_runs import last_step, prepare, run_environment, wait_for_end
from tests.support.waiting import wait_until
from verl_agent.commands.cli import app
from verl_agent.trace.record_files import read_records

STEPS = 4
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons need root"),
]


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder with a short path, for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="sl"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def state(job: str, cluster: dict[str, str]) -> str:
    """Return the state of a job; empty once Slurm has forgotten it."""
    return run("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T", **cluster)


@pytest.mark.parametrize("partition", ["low", "graced"])
def test_a_job_on_two_nodes_that_is_preempted_is_queued_again_and_resumes(root: Path, partition: str) -> None:
    venv = Path(shutil.which("verl-agent") or "").resolve().parents[1]
    trained = root / "run"
    overrides = [one for one in prepare(root, [])[6:] if "=" in one]
    overrides += ["trainer.save_freq=1", f"trainer.total_training_steps={STEPS}"]
    options = ["--nodes", "2", "--gpus", "0", "--cpus", "8", "--memory", "8", "--hours", "1", "--partition", partition]
    printed = CliRunner().invoke(
        app, ["launch", "slurm", "recipe.yaml", *overrides, *options, "--folder", str(root), "--venv", str(venv)]
    )
    assert printed.exit_code == 0, printed.output
    script = root / "job.sh"
    script.write_text(printed.output)

    def shown() -> str:
        logs = "".join(path.read_text(errors="replace")[-8000:] for path in sorted(root.glob("recipe-*.log")))
        return f"{logs}\n{run('scontrol', 'show', 'jobs', **cluster)}"

    try:
        with slurm(root / "slurm") as cluster:
            environment = {**run_environment(root), **cluster, "PYTHONPATH": str(ROOT)}
            job = run("sbatch", "--parsable", str(script), **environment)
            wait_until(lambda: last_step(trained) >= 1, 600, shown)
            reached = last_step(trained)
            assert reached < STEPS, "the job ended before it could be preempted"
            other = run(
                *("sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"),
                *("--wrap", "sleep 600"),
                **cluster,
            )
            wait_until(lambda: state(other, cluster) == "RUNNING", 120, shown, every_s=0.5)
            assert state(job, cluster) == "PENDING"
            preempted_at = last_step(trained)
            assert preempted_at < STEPS
            run("scancel", other, **cluster)
            # Slurm holds a job that was queued again for two minutes before it starts it.
            wait_until(lambda: state(job, cluster) not in ("PENDING", "RUNNING", "COMPLETING"), 600, shown, every_s=0.5)
            assert state(job, cluster) == "COMPLETED", shown()
            restarts = run("scontrol", "show", "job", job, **cluster)
    finally:
        left = wait_for_end(root)
    assert "Restarts=1" in restarts
    assert last_step(trained) == STEPS
    log = next(root.glob("recipe-*.log")).read_text()
    assert f"resuming after step {preempted_at} of {STEPS}" in log
    played = {record["step"] for record in read_records(trained) if record["purpose"] == "train"}
    assert played == set(range(1, STEPS + 1))
    assert left == []
