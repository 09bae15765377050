"""Hydra plugins: search path with this package's YAML and verl's, and resolvers for computed values.

A plugin, since `hydra.searchpath` in a recipe would break recipes that build on other recipes.
"""

import importlib.util
import sys
from copy import deepcopy
from functools import cache
from math import prod
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from typing_extensions import override

from verl_agent.platform.versions import installed_version, require_modules

CPU_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""Instruction sets that make bfloat16 faster than float32."""


class InstalledYaml(FileConfigSource):
    """YAML of an installed package, whose files are parsed once a process; parsing takes half the time of composing."""

    @staticmethod
    @override
    def scheme() -> str:
        return "installed"

    @override
    def load_config(self, config_path: str) -> ConfigResult:
        return deepcopy(_parsed(self.provider, self.path, config_path))  # Hydra changes what it gets


@cache
def _parsed(provider: str, folder: str, config_path: str) -> ConfigResult:
    return FileConfigSource(provider, f"file://{folder}").load_config(config_path)


class AgentSearchPath(SearchPathPlugin):
    """Adds the YAML folders of this package and of verl, if it is installed, to every config search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """See Hydra's SearchPathPlugin."""
        search_path.append("verl_agent", f"installed://{Path(__file__).parent}")
        if importlib.util.find_spec("verl"):  # evaluations do without
            search_path.append("verl", f"installed://{verl_config()}")


def verl_config() -> Path:
    """Return the folder of verl's YAML, without importing verl, which takes ten seconds or more.

    Raises:
        ConfigError: verl is not installed.
    """
    require_modules("verl")
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None  # a regular package
    return Path(spec.origin).parent / "trainer" / "config"


def cpu_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return `bfloat16` on processors with instructions for it, else `float32`."""
    try:
        flags = set(cpuinfo.read_text(encoding="utf-8").split())
    except OSError:
        return "float32"
    return "bfloat16" if flags & CPU_BF16_FLAGS else "float32"


def attention(flash_attn: str | None = None) -> str:
    """Return FlashAttention 2 if the package flash-attn is installed, else PyTorch's own attention.

    The module `flash_attn` does not tell: the package flash-attn-4, which SGLang installs, has another part of it.

    Args:
        flash_attn: installed version of flash-attn, "" without it; None to look it up.
    """
    return "flash_attention_2" if (installed_version("flash-attn") if flash_attn is None else flash_attn) else "sdpa"


def megatron_attention(flash_attn: str | None = None) -> str:
    """Return Megatron's attention: `flash` if the package flash-attn is installed, else `fused`, which is cuDNN's.

    Megatron switches all other kernels of Transformer Engine off. verl's own default is `flash`.

    Args:
        flash_attn: see `attention`.
    """
    return "flash" if attention(flash_attn) == "flash_attention_2" else "fused"


def vanilla_mbridge(python: tuple[int, int] = sys.version_info[:2]) -> bool:
    """Return True if Megatron needs mbridge: Megatron-Bridge, verl's default, does not exist for this Python."""
    return python < (3, 12)


def storage_units(*machine: int) -> int:
    """Return the number of TransferQueue's storage units: one for a single GPU, else two. Each takes one Ray CPU.

    Args:
        machine: number of GPUs of a machine, and number of machines.
    """
    return 1 if prod(map(int, machine)) == 1 else 2


def register_config() -> None:
    """Register plugin and resolvers, so that this process can compose recipes. Repeated calls have no effect."""
    Plugins.instance().register(AgentSearchPath)
    Plugins.instance().register(InstalledYaml)
    for resolver in (cpu_dtype, attention, megatron_attention, vanilla_mbridge, storage_units):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
    OmegaConf.register_new_resolver("max", lambda *values: max(map(int, values)), replace=True)
    OmegaConf.register_new_resolver("add", lambda *values: sum(map(int, values)), replace=True)
