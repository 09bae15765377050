"""Tests of the files that `verl-agent launch` prints, and of values that it refuses."""

import shutil
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from tests import ROOT
from verl_agent.commands.cli import app
from verl_agent.commands.launch import Scheduler

TRAINED = "recipes/guess_number/grpo.yaml"
STORE = {Scheduler.SLURM: [], Scheduler.KUBERNETES: ["--store", "runs"], Scheduler.SKY: ["--store", "s3://runs"]}


def printed(*arguments: str, status: int = 0) -> str:
    """Run `verl-agent launch` for the recipes of this repository."""
    done = CliRunner().invoke(app, ["launch", *arguments, "--folder", str(ROOT)])
    assert done.exit_code == status, done.output
    return done.output


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("gpus", [0, 4])
def test_a_job_runs_the_recipe_on_all_its_machines(scheduler, nodes, gpus):
    text = printed(
        scheduler, TRAINED, "data.seed=3", "--nodes", str(nodes), "--gpus", str(gpus), "--cpus", "16", *STORE[scheduler]
    )
    layout = f"trainer.nnodes={nodes} trainer.n_gpus_per_node={gpus or 1}"
    assert f"verl-agent train {TRAINED} {layout} data.seed=3" in text
    assert ("VERL_PLATFORM" in text) == (gpus == 0)
    venv, image = (".venv-gpu", "gpu-vllm") if gpus else (".venv", "cpu")
    slurm = scheduler is Scheduler.SLURM
    assert (f"source {ROOT}/{venv}/bin/activate" if slurm else f'verl-agent:{image}"') in text
    assert ("ray start" in text) == (nodes > 1) or scheduler is Scheduler.KUBERNETES


@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_accepts_the_script_for_slurm(tmp_path, nodes):
    script = tmp_path / "job.sh"
    script.write_text(printed("slurm", TRAINED, "--nodes", nodes, "--partition", "gpu", "env.name='x y'"))
    checked = [
        "shellcheck",
        "--exclude=SC1091,SC2317,SC2329",
        script,
    ]  # the environment's activate; a function that is passed on
    assert subprocess.run(checked, capture_output=True, text=True, check=False).stdout == ""


def test_a_rayjob_has_a_pod_template_for_the_head_and_one_for_the_other_machines():
    job = yaml.safe_load(
        printed("kubernetes", TRAINED, "--nodes", "4", "--gpus", "8", "--store", "runs", "--hours", "2")
    )
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == ("ray.io/v1", "RayJob", "guess-number-grpo")
    assert job["spec"]["activeDeadlineSeconds"] == 7200
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (3, 3, 3)
    for group in (head, workers):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"cpu": "32", "memory": "256G", "nvidia.com/gpu": "8"}
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts == {str(ROOT), "/dev/shm"}


def test_a_job_for_skypilot_keeps_its_runs_in_the_bucket():
    job = yaml.safe_load(printed("sky", TRAINED, "--nodes", "2", "--store", "s3://runs", "--accelerator", "A100-80GB"))
    assert job["num_nodes"] == 2
    assert job["resources"]["accelerators"] == "A100-80GB:8"
    assert job["file_mounts"]["~/sky_workdir/runs"]["source"] == "s3://runs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slurm", "recipes/guess_number/grpoo.yaml"], "Did you mean 'recipes/guess_number/grpo.yaml'?"),
        (["slurm", f"{ROOT}/{TRAINED}"], "is absolute. Give its path below the folder of the job, --folder."),
        (["kubernetes", TRAINED], "kubernetes needs a store, which keeps runs/ between machines: --store"),
        (["sky", TRAINED], "sky needs a store, which keeps runs/ between machines: --store s3://"),
        (["slurm", TRAINED, "--nodes", "0"], "launch.nodes=0 is not allowed. Allowed: a whole number from 1 to 1024"),
        (["slurm", TRAINED, "--gpus", "99"], "launch.gpus=99 is not allowed."),
        (["slurm", TRAINED, "--name", "My Run"], "launch.name='My Run' is not allowed. Allowed: at most 40 lowercase"),
        (["slurm", TRAINED, "--venv", ".venv"], "launch.venv='.venv' is not allowed. Allowed: an absolute path"),
        (["slurm", TRAINED, "--partition", "a b"], "launch.partition='a b' is not allowed."),
    ],
)
def test_a_value_that_no_scheduler_takes_is_refused_by_name(arguments, message):
    assert message in printed(*arguments, status=2)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.seeed=3", "data.seeed is not a setting of this recipe. Did you mean 'seed'?"),
        ("data.seed=x", "data.seed='x' is not allowed. Allowed: a number"),
        ("trainer.nnodes", "'trainer.nnodes' has no value. Allowed: KEY=VALUE"),
        ("+overlay/algo=ppo", "there is no group 'overlay/algo'."),
        ("data.seed=1\nrm", "is not allowed. Allowed: KEY=VALUE in one line"),
    ],
)
def test_the_recipe_is_checked_before_a_file_is_printed(override, message):
    pytest.importorskip("verl")
    said = printed("slurm", TRAINED, override, status=2)
    assert message in said and "#SBATCH" not in said


def test_a_setting_of_the_recipe_may_be_removed():
    assert "'~trainer.test_freq'" in printed("slurm", TRAINED, "~trainer.test_freq")


def test_without_verl_the_job_is_printed_and_the_missing_check_named():
    code = "import sys; sys.modules['verl'] = None; from verl_agent.commands.cli import app; app()"
    command = [sys.executable, "-c", code, "launch", "slurm", TRAINED, "--folder", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "#SBATCH" in done.stdout
    assert f"The settings of {TRAINED} are not checked: verl is not installed here." in " ".join(done.stderr.split())
