"""Let Hydra find our shared YAML and verl's beside a recipe's, and answer what YAML cannot compute.

`hydra.searchpath` inside a recipe would break recipes that build on recipes, hence a plugin.
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
    """Adds this package's folder and verl's to every config search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """See Hydra's SearchPathPlugin."""
        search_path.append("verl_agent", "pkg://verl_agent.config")
        search_path.append("verl", f"file://{verl_config()}")


def verl_config() -> Path:
    """The folder of verl's YAML, found without importing verl, which takes ten seconds and more.

    Raises:
        ConfigError: verl is not installed.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise ConfigError("verl is not installed in this environment. Run `make setup`.")
    return Path(spec.origin).parent / "trainer" / "config"


def cpu_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """`bfloat16` on processors that compute in it, else `float32`."""
    try:
        flags = set(cpuinfo.read_text(encoding="utf-8").split())
    except OSError:
        return "float32"
    return "bfloat16" if flags & CPU_BF16_FLAGS else "float32"


def register_config() -> None:
    """Make recipes composable in this process. May be called more than once."""
    Plugins.instance().register(AgentSearchPath)
    OmegaConf.register_new_resolver("cpu_dtype", cpu_dtype, replace=True)
    OmegaConf.register_new_resolver("add", lambda *values: sum(map(int, values)), replace=True)
