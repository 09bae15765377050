"""Tests of joining a running Ray cluster, of machines that cannot serve the run, and of the runner in the driver.

Two Ray nodes run on this machine. The second one has another working directory and none of the command's variables.
"""

import gc
import io
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tqdm import tqdm  # type: ignore[import-untyped]

from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.training.cluster import (
    DriverRunner,
    check_cluster,
    check_own_cpus,
    forwarded,
    join_cluster,
    needed_cpus,
)

RUN = {
    "env": {"name": "guess_number", "train_tasks": "small_train", "eval_tasks": "small_test"},
    "horizon": {"max_turns": [1]},
    "episode": {"max_tokens_per_turn": 8},
    "agent": {"name": "raw"},
    "trainer": {"nnodes": 2, "n_gpus_per_node": 1, "default_local_dir": "", "device": "cpu"},
    "transfer_queue": {"enable": True, "backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
    "ray_kwargs": {"ray_init": {"num_cpus": 32, "include_dashboard": False, "runtime_env": {"env_vars": {"OWN": "1"}}}},
    "actor_rollout_ref": {"model": {"path": "/"}, "actor": {"strategy": "fsdp2"}},
}


def run_config(folder: Path, **trainer: object):
    return OmegaConf.merge(OmegaConf.create(RUN), {"trainer": {"default_local_dir": str(folder), **trainer}})


def run_plan(folder: Path, **trainer: object) -> RunPlan:
    return RunPlan.of(OmegaConf.to_container(run_config(folder, **trainer)))


@pytest.mark.parametrize("cpus", [6, 7])
def test_own_ray_with_too_few_logical_cpus_is_refused(tmp_path, cpus):
    config = OmegaConf.merge(run_config(tmp_path, nnodes=1), {"ray_kwargs": {"ray_init": {"num_cpus": cpus}}})
    plan = RunPlan.of(OmegaConf.to_container(config))
    if cpus == 7:
        check_own_cpus(plan)
        return
    with pytest.raises(ConfigError, match=r"ray_init\.num_cpus=6 gives Ray 6 logical CPUs, and the run needs 7"):
        check_own_cpus(plan)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with logical GPUs: the first with 8 CPUs, the second with 4 and one variable less."""
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "num_gpus": 1, "include_dashboard": False})
    started.add_node(num_cpus=4, num_gpus=1, env_vars={"HF_ENDPOINT": ""})
    before = os.environ.get("HF_ENDPOINT"), os.environ.get("RAY_ADDRESS")
    os.environ |= {"HF_ENDPOINT": "http://mirror.test", "RAY_ADDRESS": started.address}
    try:
        folder = tmp_path_factory.mktemp("run")
        join_cluster(run_plan(folder), run_config(folder))
        yield started
    finally:
        for name, value in zip(("HF_ENDPOINT", "RAY_ADDRESS"), before, strict=True):
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        ray.shutdown()
        started.shutdown()


@ray.remote(num_cpus=0)
def variables() -> dict[str, str]:
    return dict(os.environ)


def test_variables_of_the_command_and_of_the_recipe_reach_every_machine(cluster):
    for node in ray.nodes():
        on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        found = ray.get(variables.options(scheduling_strategy=on_node).remote())
        assert (found["HF_ENDPOINT"], found["OWN"]) == ("http://mirror.test", "1")
        assert found["TRANSFER_QUEUE_ENABLE"] == "1"


def test_only_variables_that_other_machines_need_are_passed_on():
    given = {"HF_TOKEN": "a", "MY_API_KEY": "b", "JAVA_HOME": "c", "WANDB_MODE": "d", "HOME": "e", "PATH": "f"}
    given |= {"http_proxy": "g", "HTTPS_PROXY": "h", "all_proxy": "i", "no_proxy": "j"}
    left_out = ("HOME", "PATH")
    assert forwarded(given) == {name: value for name, value in given.items() if name not in left_out}


def test_run_on_one_machine_starts_its_own_ray(tmp_path):
    assert run_plan(tmp_path).layout.joins_ray
    assert run_plan(tmp_path, nnodes=1).layout.joins_ray == bool(os.environ.get("RAY_ADDRESS"))


def test_folder_that_another_machine_does_not_share_is_refused(cluster, tmp_path):
    """The path leads through an open file of this process, which others do not have."""
    descriptor = os.dup2(os.open(tmp_path, os.O_RDONLY), 900)
    plan, own = run_plan(tmp_path), Path(f"/proc/self/fd/{descriptor}/run")
    try:
        with pytest.raises(ConfigError, match=r"does not see the folder of the run, /proc/self.*all machines share"):
            check_cluster(replace(plan, schedule=replace(plan.schedule, folder=own)))
    finally:
        os.close(descriptor)
    assert list((tmp_path / "run").iterdir()) == [], "the probe is removed"


def test_too_few_free_cpus_are_refused_with_both_numbers(cluster, tmp_path):
    plan = run_plan(tmp_path)
    assert needed_cpus(plan) == 10
    holder = ray.remote(num_cpus=4)(type("Tenant", (), {"ready": lambda self: True})).remote()
    ray.get(holder.ready.remote())
    try:
        with pytest.raises(ConfigError, match="needs 10 CPUs of Ray, and 8 of 12 are free in the cluster"):
            check_cluster(plan)
    finally:
        ray.kill(holder)
        deadline = time.monotonic() + 60
        while ray.available_resources()["CPU"] < 12 and time.monotonic() < deadline:
            time.sleep(0.1)


def test_too_few_machines_are_refused_with_the_gpus_of_each(cluster, tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.nnodes=2 with trainer\.n_gpus_per_node=2 needs as many machines"):
        check_cluster(run_plan(tmp_path, n_gpus_per_node=2))


@pytest.mark.parametrize("name", ["actor", "critic"])
def test_model_that_another_machine_does_not_see_is_refused(cluster, tmp_path, name):
    """The path leads through an open file of this process, which others do not have."""
    descriptor = os.dup2(os.open(tmp_path, os.O_RDONLY), 901)
    plan, here = run_plan(tmp_path), f"/proc/self/fd/{descriptor}"
    try:
        with pytest.raises(ConfigError, match=f"does not see the model at {here}"):
            check_cluster(replace(plan, **{name: replace(plan.actor, path=here)}))
    finally:
        os.close(descriptor)


def test_model_of_the_hub_is_no_folder_that_machines_share(cluster, tmp_path):
    plan = run_plan(tmp_path)
    check_cluster(replace(plan, actor=replace(plan.actor, path="Qwen/Qwen2.5-3B-Instruct")))


def test_cluster_that_does_not_run_is_refused(tmp_path):
    config = run_config(tmp_path)
    config.ray_kwargs.ray_init.address = "127.0.0.1:1"
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at '127\.0\.0\.1:1'.*ray start --head"):
        join_cluster(run_plan(tmp_path), config)


class Interrupted:
    """Runner with a progress bar that is interrupted, and that its traceback keeps."""

    def run(self, config: Any) -> None:
        bar = tqdm(total=1, file=config["file"])
        assert bar is not None
        raise KeyboardInterrupt


def test_an_interrupted_progress_bar_prints_nothing_later():
    file = io.StringIO()
    with pytest.raises(KeyboardInterrupt) as caught:
        DriverRunner(Interrupted).run.remote({"file": file})  # type: ignore[arg-type]
    printed = file.getvalue()
    del caught
    gc.collect()
    assert file.getvalue() == printed
