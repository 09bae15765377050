"""Registration of this package's CPU device and weight transfer with verl, in the present process."""

from functools import partial
from pkgutil import resolve_name
from typing import Any

from verl_agent.platform.after_import import after_import
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.megatron.activation import stand_in_when_imported, stand_ins_wanted
from verl_agent.platform.versions import check_versions


def register_cpu_device() -> None:
    """Make the CPU a device of verl: platform, training engines, version of vLLM, patches."""
    check_versions()
    from verl.plugin.platform import set_platform

    from verl_agent.platform.device import PlatformCPU
    from verl_agent.platform.patches import memory_of_transfers, one_backend_per_device
    from verl_agent.platform.vllm_version import answer_vllm_version

    set_platform(PlatformCPU())
    answer_vllm_version()
    one_backend_per_device()
    memory_of_transfers()
    if stand_ins_wanted():
        stand_in_when_imported()
    after_import("verl.workers.engine", _register_engines)


def _register_engines() -> None:
    from verl_agent.platform.cpu_engine import CpuLanguageEngine, CpuValueEngine

    register_engines(CpuLanguageEngine, CpuValueEngine, backend=["fsdp", "fsdp2"], device=["cpu"])
    if stand_ins_wanted():
        from verl_agent.platform.megatron.engines import CpuMegatronLanguageEngine, CpuMegatronValueEngine

        register_engines(CpuMegatronLanguageEngine, CpuMegatronValueEngine, backend="megatron", device="cpu")


def register_engines(language: type, value: type, **where: Any) -> None:
    """Make verl train policies and critics with these engines; `where` is the backend, the device and its vendor."""
    from verl.workers.engine.base import EngineRegistry

    EngineRegistry.register(model_type="language_model", **where)(language)
    EngineRegistry.register(model_type="value_model", **where)(value)


def register_resharding() -> None:
    """Make verl use this package's FSDP engines on an accelerator too: they load checkpoints of any number of ranks."""
    after_import("verl.workers.engine", _register_resharding)


def _register_resharding() -> None:
    from verl.utils.device import get_device_name, get_vendor

    from verl_agent.platform.resharding import ReshardingLanguageEngine, ReshardingValueEngine

    # verl prefers an engine with a vendor to its own ones, which have none.
    where = {"backend": ["fsdp", "fsdp2"], "device": get_device_name(), "vendor": get_vendor()}
    register_engines(ReshardingLanguageEngine, ReshardingValueEngine, **where)


def register_rollouts() -> None:
    """Make verl use this package's servers and weight transfers for vLLM and SGLang."""
    after_import("verl.workers.rollout.base", _register_adapter)
    after_import("verl.workers.rollout.replica", _register_replica)


def _register_adapter() -> None:
    from verl.workers.rollout import base

    base._ROLLOUT_REGISTRY[("vllm", "async")] = "verl_agent.platform.vllm_rollout.RunScopedServerAdapter"
    if use_cpu_device():
        base._ROLLOUT_REGISTRY[("sglang", "async")] = "verl_agent.platform.sglang.rollout.CpuServerAdapter"


def _register_replica() -> None:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", partial(resolve_name, "verl_agent.platform.vllm_rollout:RunScopedReplica"))
    RolloutReplicaRegistry.register("sglang", _load_sglang)


def _load_sglang() -> Any:
    if not use_cpu_device():
        from verl.workers.rollout import replica

        replica._load_sglang()  # prepares the import of SGLang in a process without a GPU
    from verl_agent.platform.sglang.rollout import FullContextReplica

    return FullContextReplica
