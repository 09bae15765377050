"""Ray of a run: the running cluster that it joins, checks of the machines, and the process in which verl trains."""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tqdm import tqdm  # type: ignore[import-untyped]

from verl_agent.config.plan import RunPlan
from verl_agent.envs.machine.proxies import is_proxy_variable, settle_proxies
from verl_agent.errors import ConfigError

FORWARDED = (
    "JAVA_HOME",
    "PLAYWRIGHT_BROWSERS_PATH",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "XDG_CACHE_HOME",
)
"""Variables that all processes of a run have as the command does, if it has them."""
PREFIXES, SUFFIXES = ("DEEPSEARCH_", "HF_", "VERL_AGENT_", "WANDB_", "WEBARENA_"), ("_API_KEY", "_TOKEN")
"""Beginnings and ends of names of further such variables; the latter are those of keys."""
OWN_CLUSTER = ("num_cpus", "num_gpus", "object_store_memory", "_temp_dir", "include_dashboard")
"""Settings of `ray_kwargs.ray_init` that are for a Ray of this run alone; a running one has its own."""
WORKER_CPUS = 3
"""Logical CPUs that verl reserves for each rank (verl 0.9.1, single_controller/ray/base.py:192)."""
STARTING_CPUS = 2
"""Logical CPUs that must be free while actors start: the run itself and one more at a time."""
PROBE_S = 120.0
"""Most seconds for the first task on a machine, which imports this package."""


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that processes on other machines need."""
    return {
        name: value
        for name, value in environment.items()
        if name in FORWARDED or is_proxy_variable(name) or name.startswith(PREFIXES) or name.endswith(SUFFIXES)
    }


def needed_cpus(plan: RunPlan) -> int:
    """Return the logical CPUs without which Ray would wait for ever: those of ranks, TransferQueue and starting actors.

    Hosts of environments come on top. They wait for a free CPU with a time limit, `env.hosts.wait_s`.
    """
    units = int(plan.value("transfer_queue.backend.SimpleStorage.num_data_storage_units"))
    return WORKER_CPUS * plan.layout.ranks + 1 + units + STARTING_CPUS


def join_cluster(plan: RunPlan, config: DictConfig) -> None:
    """Connect to the running Ray if the run joins one, and check its machines; verl then uses the connection.

    A run that joins none starts its own Ray later; its logical CPUs are checked here.

    Keys and tokens of the environment go to the processes directly: they are in no config, record or log of the run.
    Who may use the cluster can read them.

    Args:
        config: verl's config of the run.

    Raises:
        ConfigError: no Ray can be reached, its machines cannot serve the run, or the run's own Ray has too few CPUs.
    """
    settle_proxies()
    if not plan.layout.joins_ray:
        check_own_cpus(plan)
        return
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    init = dict(OmegaConf.to_container(config.ray_kwargs.ray_init))
    own = init.pop("runtime_env", {})
    defaults = get_ppo_ray_runtime_env(config)
    variables = defaults.pop("env_vars") | forwarded(os.environ) | (own.get("env_vars") or {})
    variables |= {"TRANSFER_QUEUE_ENABLE": "1"} if config.transfer_queue.enable else {}
    init = {key: value for key, value in init.items() if key not in OWN_CLUSTER}
    address = init.pop("address", None) or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        ray.init(address=address, runtime_env={**defaults, **own, "env_vars": variables}, **init)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address!r}: {_first_line(error)}. trainer.nnodes={plan.layout.nodes} and "
            "RAY_ADDRESS need a running one: `ray start --head` on one machine, `ray start --address=HEAD:6379` on the "
            "others."
        ) from error
    check_cluster(plan)


def check_own_cpus(plan: RunPlan) -> None:
    """Check the logical CPUs of the Ray that the run starts for itself."""
    given = plan.value("ray_kwargs.ray_init.num_cpus")
    cpus = len(os.sched_getaffinity(0)) if given is None else given
    if cpus < (needed := needed_cpus(plan)):
        raise ConfigError(
            f"ray_kwargs.ray_init.num_cpus={'null' if given is None else given} gives Ray {cpus} logical CPUs, and the "
            f"run needs {needed}; it would wait for ever. Set it to {needed} or more, even with fewer cores."
        )


def check_cluster(plan: RunPlan) -> None:
    """Check the connected cluster: free resources for the run, and on all machines this package and its files."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    total = ray.cluster_resources()
    machines = plan.layout
    fitting = [node for node in nodes if node["Resources"].get("GPU", 0) >= machines.ranks_each]
    if len(fitting) < machines.nodes:
        held = ", ".join(f"{node['NodeManagerHostname']} {node['Resources'].get('GPU', 0):g}" for node in nodes)
        raise ConfigError(
            f"trainer.nnodes={machines.nodes} with trainer.n_gpus_per_node={machines.ranks_each} "
            f"needs as many machines with as many GPUs. GPUs of the cluster: {held}. Add machines with `ray start`, or "
            "lower the settings. On machines without GPUs, `ray start --num-gpus=N` declares N ranks."
        )
    for name, needed in (("GPU", machines.ranks), ("CPU", needed_cpus(plan))):
        if free.get(name, 0) < needed:
            raise ConfigError(
                f"the run needs {needed} {name}s of Ray, and {free.get(name, 0):g} of {total.get(name, 0):g} are free "
                f"in the cluster; it would wait for ever. End its other jobs (`ray status` shows them), or start its "
                f"machines with more (`ray start --num-{name.lower()}s=N`; they are logical)."
            )
    folder = plan.schedule.folder
    models = [one.path for one in (*plan.trained, plan.teacher) if one and os.path.isdir(one.path)]
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".seen-by-all-{uuid.uuid4().hex[:8]}"
    probe.touch()
    try:
        for node in nodes:
            name = node["NodeManagerHostname"]
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked = _look.options(scheduling_strategy=on_node).remote(str(probe), models)
            try:
                found = ray.get(asked, timeout=PROBE_S)
            except RayError as error:
                raise ConfigError(
                    f"machine {name} cannot run this package: {_first_line(error)}. Install the same environment "
                    "there, and start Ray from it."
                ) from error
            if not found["probe"]:
                raise ConfigError(
                    f"machine {name} does not see the folder of the run, {folder}. Set trainer.default_local_dir to a "
                    "folder that all machines share under the same path."
                )
            if found["missing"]:
                raise ConfigError(
                    f"machine {name} does not see the model at {found['missing'][0]}. Put it into a folder that all "
                    "machines share (VERL_AGENT_CACHE is where this package keeps models)."
                )
            own = _versions()
            if other := {package: number for package, number in found["versions"].items() if number != own[package]}:
                raise ConfigError(
                    f"machine {name} has other versions: {other}, and this machine {own}. Install the same environment "
                    "there."
                )
    finally:
        with suppress(OSError):
            probe.unlink()


@ray.remote(num_cpus=0)
def _look(probe: str, models: list[str]) -> dict[str, Any]:
    """Return what the machine of this task sees."""
    missing = [model for model in models if not Path(model).exists()]
    return {"probe": Path(probe).exists(), "missing": missing, "versions": _versions()}


def _versions() -> dict[str, str]:
    return {package: version(package) for package in ("verl-agent", "verl", "torch")}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class EpisodeRunner:
    """Runs verl's `TaskRunnerV1` (verl/trainer/main_ppo.py), which finds trainers by their name, in a Ray actor."""

    def run(self, config: DictConfig) -> None:
        """Train until the end of `config`."""
        from verl.trainer.main_ppo import TaskRunnerV1

        import verl_agent.training.partial  # noqa: F401 - registers all trainers

        TaskRunnerV1.__ray_metadata__.modified_class().run(config)


class DriverRunner:
    """`EpisodeRunner` in the driver, with the interface of an actor, which verl's `run_ppo` expects.

    Driver and actor both import verl. Without the actor, a run takes 0.6 GB less and starts seconds earlier.
    """

    def __init__(self, runner: type = EpisodeRunner) -> None:
        self._runner = runner()
        self.run = SimpleNamespace(remote=self._run)

    @classmethod
    def remote(cls) -> "DriverRunner":
        """Return a runner."""
        return cls()

    def _run(self, config: DictConfig) -> Any:
        """Train, and return a Ray object."""
        try:
            self._runner.run(config)
        finally:
            # A bar that is deleted later would print on the terminal.
            for bar in tuple(getattr(tqdm, "_instances", ())):
                bar.close()
        return ray.put(None)
