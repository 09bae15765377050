"""Runs on a Ray cluster of several nodes on this machine: two nodes that train, and one that only hosts environments.

Each node is a Ray node of its own, as `ray start` makes it. What is not tested here: the network between machines.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from ray._private.node import Node
from ray.cluster_utils import Cluster

from tests.support.models import write_byte_model
from tests.support.training_runs import RECIPE, command_line, last_step, marked_processes, run_environment, wait_for_end
from tests.support.waiting import wait_until
from verl_agent.runs.hang_watch import PHASE_FILE
from verl_agent.trace.record_files import read_records
from verl_agent.training.phases import PHASE_OF_METHOD

TRAINER = {"num_cpus": 12, "num_gpus": 1}
"""Logical resources of a node with one rank."""
HOSTS_ONLY = {"num_cpus": 0, "num_gpus": 0, "resources": {"play": 1}}
"""Logical resources of a node for hosts alone (`env.hosts.resource=play`): without CPUs it gets no actor of verl."""
LOST, REPLACEMENT = "127.0.0.2", "127.0.0.3"
"""Addresses of a node that is lost and of the one that replaces it."""
TWO_NODES = ["trainer.nnodes=2", "trainer.n_gpus_per_node=1"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@contextmanager
def cluster_of(head: Mapping[str, object], *others: Mapping[str, object]) -> Iterator[Cluster]:
    """Run a cluster of Ray nodes."""
    cluster = Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False})
    for other in others:
        cluster.add_node(**other)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def prepare(root: Path) -> None:
    """Write the recipe and the model of a run."""
    root.mkdir()
    root.joinpath("recipe.yaml").write_text(RECIPE)
    write_byte_model(root / "model", ["Guess a whole number from 1 to 12. Higher. Lower."], vocabulary=300)


def train(
    root: Path, cluster: Cluster, *overrides: str, during: Callable[[Path], None] | None = None
) -> tuple[int, str]:
    """Run the recipe on a cluster and return exit status and output; `during` gets the folder of the run meanwhile."""
    paths = [f"actor_rollout_ref.model.path={root / 'model'}", f"trainer.default_local_dir={root / 'run'}"]
    environment = run_environment(root) | {"RAY_ADDRESS": cluster.address}
    command = command_line("train", root, "recipe", *overrides, *paths)
    with (root / "output").open("w") as output:
        run = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=root)
        try:
            if during is not None:
                during(root / "run")
            status = run.wait(timeout=900)
        finally:
            run.kill()
    assert wait_for_end(root) == []
    return status, (root / "output").read_text()


def played(run: Path, steps: Sequence[int]) -> list[tuple[int, str, int]]:
    """Return step, task and sample of the training episodes of some steps, sorted."""
    records = read_records(run) if run.is_dir() else []
    return sorted((one["step"], one["task"], one["sample"]) for one in records if one["step"] in steps)


def test_two_nodes_train_and_a_killed_run_resumes_with_the_same_tasks(tmp_path: Path) -> None:
    """The command has variables that its nodes lack; hosts are Ray actors, spread over both."""
    saved = ["trainer.save_freq=1", "trainer.total_training_steps=3", *TWO_NODES]
    with cluster_of(TRAINER, TRAINER) as cluster:
        prepare(tmp_path / "whole")
        status, shown = train(tmp_path / "whole", cluster, *saved)
        assert status == 0, shown
        assert last_step(tmp_path / "whole/run") == 3

        def kill(run: Path) -> None:
            wait_until(lambda: last_step(run) >= 1, 600)
            for process in marked_processes(tmp_path / "killed"):
                if "verl_agent.commands.train" in " ".join(process.cmdline()):
                    process.kill()

        prepare(tmp_path / "killed")
        train(tmp_path / "killed", cluster, *saved, "trainer.max_restarts=0", during=kill)
        assert 1 <= last_step(tmp_path / "killed/run") < 3
        status, shown = train(tmp_path / "killed", cluster, *saved)
        assert status == 0, shown
    whole = played(tmp_path / "whole/run", [1, 2, 3])
    assert len(whole) == 3 * 16
    assert set(played(tmp_path / "killed/run", [1, 2, 3])) == set(whole)


def test_hosts_of_a_node_that_dies_are_replaced_and_no_episode_is_lost(tmp_path: Path) -> None:
    """The run has its hosts on nodes without a rank. One of two dies in the middle of a step."""
    hosts = [f"env.hosts.{option}" for option in ("where=ray", "resource=play", "num_cpus=0", "count=2")]
    hosts.append("trainer.total_training_steps=3")
    with cluster_of(TRAINER, HOSTS_ONLY, HOSTS_ONLY) as cluster:
        prepare(tmp_path / "root")

        def end_node(run: Path) -> None:
            wait_until(lambda: len(played(run, [1, 2])) > 4, 600, every_s=0.2)
            cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)

        status, shown = train(tmp_path / "root", cluster, *hosts, during=end_node)
    assert status == 0, shown
    assert len(played(tmp_path / "root/run", [1, 2, 3])) == 3 * 16
    assert not [one for one in read_records(tmp_path / "root/run") if one["stop"] == "env_error"]


def test_node_with_a_rank_that_dies_ends_the_run_with_its_name_and_it_resumes_on_another(tmp_path: Path) -> None:
    saved = ["trainer.save_freq=1", "trainer.total_training_steps=3", "trainer.max_restarts=0", *TWO_NODES]
    with cluster_of(TRAINER, TRAINER) as cluster:
        prepare(tmp_path / "root")

        def end_node(run: Path) -> None:
            wait_until(lambda: last_step(run) >= 1, 600)
            cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)

        status, shown = train(tmp_path / "root", cluster, *saved, during=end_node)
        assert status != 0 and "was lost with its machine" in shown, shown
        status, shown = train(tmp_path / "root", cluster, *saved)
        assert status != 0 and "trainer.nnodes=2 with trainer.n_gpus_per_node=1 needs as many machines" in shown
        cluster.add_node(**TRAINER)
        status, shown = train(tmp_path / "root", cluster, *saved)
        assert status == 0, shown
    assert os.path.isdir(tmp_path / "root/run")
    assert last_step(tmp_path / "root/run") == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_node_lost_in_a_weight_transfer_is_named_and_the_run_goes_on_with_its_replacement(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A stopped node keeps its connections open, as a machine without power does."""
    saved = ["trainer.save_freq=1", "trainer.total_training_steps=4", *TWO_NODES]
    lost_s: list[float] = []
    with cluster_of(TRAINER, {**TRAINER, "node_ip_address": LOST}) as cluster:
        prepare(tmp_path / "root")

        def replace_node(run: Path) -> None:
            wait_until(lambda: last_step(run) >= 1, 600)
            wait_until(lambda: (run / PHASE_FILE).read_text() == PHASE_OF_METHOD["on_step_end"], 600)
            (lost,) = cluster.worker_nodes
            processes = processes_of(lost)
            try:
                for process in processes:
                    process.send_signal(number)
                lost_s.append(time.monotonic())
                wait_until(lambda: "was lost with its machine" in (tmp_path / "root/output").read_text(), 240)
                lost_s.append(time.monotonic())
            finally:
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            cluster.add_node(**TRAINER, node_ip_address=REPLACEMENT)

        status, shown = train(tmp_path / "root", cluster, *saved, during=replace_node)
    message = next(line for line in shown.splitlines() if "was lost with its machine" in line)
    print(f"\n| {number.name} of a node | {lost_s[1] - lost_s[0]:.0f} s | {message} |")  # noqa: T201 - a measurement
    assert status == 0 and f"on {LOST}, was lost with its machine" in shown and "Restart 1 of 3" in shown, shown
    assert last_step(tmp_path / "root/run") == 4


def processes_of(node: Node) -> list[psutil.Process]:
    """Return the processes of a Ray node: its raylet and all that this has started."""
    raylets = [one for group in node.all_processes.values() for one in group]
    found = [psutil.Process(one.process.pid) for one in raylets]
    return [process for one in found for process in (one, *one.children(recursive=True))]
