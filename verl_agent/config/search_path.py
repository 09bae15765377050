"""Hydra plugin: search path with this package's YAML and verl's, and resolvers for computed values.

A plugin, since `hydra.searchpath` in a recipe would break recipes that build on other recipes.
"""

import importlib.util
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from verl_agent.errors import ConfigError

CPU_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""Instruction sets that make bfloat16 faster than float32."""


class AgentSearchPath(SearchPathPlugin):
    """Adds the YAML folders of this package and of verl to every config search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """See Hydra's SearchPathPlugin."""
        search_path.append("verl_agent", "pkg://verl_agent.config")
        search_path.append("verl", f"file://{verl_config()}")


def verl_config() -> Path:
    """Return the folder of verl's YAML, without importing verl, which takes ten seconds or more.

    Raises:
        ConfigError: verl is not installed.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise ConfigError("verl is not installed in this environment. Run `make setup`.")
    return Path(spec.origin).parent / "trainer" / "config"


def cpu_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return `bfloat16` on processors with instructions for it, else `float32`."""
    try:
        flags = set(cpuinfo.read_text(encoding="utf-8").split())
    except OSError:
        return "float32"
    return "bfloat16" if flags & CPU_BF16_FLAGS else "float32"


def register_config() -> None:
    """Register plugin and resolvers, so that this process can compose recipes. Repeated calls have no effect."""
    Plugins.instance().register(AgentSearchPath)
    OmegaConf.register_new_resolver("cpu_dtype", cpu_dtype, replace=True)
    OmegaConf.register_new_resolver("add", lambda *values: sum(map(int, values)), replace=True)
