"""Registration of this package's CPU device and weight transfer with verl, in the present process."""

from typing import Any

from verl_agent.platform.after_import import after_import
from verl_agent.platform.versions import check_versions


def register_cpu_device() -> None:
    """Make the CPU a device of verl: platform, training engines, version of vLLM, patches.

    Raises:
        ConfigError: an upstream package has a version that the CPU device was not tested with.
    """
    check_versions()
    from verl.plugin.platform import set_platform

    from verl_agent.platform.device import PlatformCPU
    from verl_agent.platform.patches import one_backend_per_device
    from verl_agent.platform.vllm_version import answer_vllm_version

    set_platform(PlatformCPU())
    answer_vllm_version()
    one_backend_per_device()
    after_import("verl.workers.engine", _register_engines)


def _register_engines() -> None:
    from verl.workers.engine.base import EngineRegistry

    from verl_agent.platform.cpu_engine import CpuLanguageEngine, CpuValueEngine

    for model_type, engine in (("language_model", CpuLanguageEngine), ("value_model", CpuValueEngine)):
        EngineRegistry.register(model_type=model_type, backend=["fsdp", "fsdp2"], device=["cpu"])(engine)


def register_weight_transfer() -> None:
    """Make verl's vLLM rollout transfer weights through a socket of the run."""
    after_import("verl.workers.rollout.base", _register_adapter)
    after_import("verl.workers.rollout.replica", _register_replica)


def _register_adapter() -> None:
    from verl.workers.rollout import base

    base._ROLLOUT_REGISTRY[("vllm", "async")] = "verl_agent.platform.vllm_rollout.RunScopedServerAdapter"


def _register_replica() -> None:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", _load_replica)


def _load_replica() -> Any:
    from verl_agent.platform.vllm_rollout import RunScopedReplica

    return RunScopedReplica
