"""Register the CPU device with verl: platform, training engines, version answer, patches."""

from verl_agent.platform.versions import check_versions


def register_cpu_device() -> None:
    """Make the CPU a device of verl in this process.

    Raises:
        ConfigError: an upstream version that it was not tested with.
    """
    check_versions()
    from verl.plugin.platform import set_platform

    from verl_agent.platform.device import PlatformCPU
    from verl_agent.platform.patches import one_backend_per_device, value_model_without_flash_attention
    from verl_agent.platform.vllm_version import answer_vllm_version

    set_platform(PlatformCPU())
    answer_vllm_version()
    one_backend_per_device()
    value_model_without_flash_attention()

    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

    for model_type, engine in (("language_model", FSDPEngineWithLMHead), ("value_model", FSDPEngineWithValueHead)):
        EngineRegistry.register(model_type=model_type, backend=["fsdp", "fsdp2"], device=["cpu"])(engine)
