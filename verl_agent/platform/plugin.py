"""Plugin that `import verl` loads in every process (entry-point group `verl.plugins`).

verl ignores a plugin that fails to import, without a message. Commands therefore call `require_plugin()` at start.
"""

import logging
import os
from importlib.metadata import entry_points

from verl_agent.errors import ConfigError
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.patches import fixed_master_ports, skip_engine_of_ascend, value_model_attention
from verl_agent.platform.register import register_cpu_device, register_resharding, register_rollouts
from verl_agent.platform.stacks import answer_signal
from verl_agent.terminal import guard_output

# vLLM's server imports `model_hosting_container_standards`, which raises the level of the root logger and of its
# handlers to ERROR unless this variable names another one. Our warnings would be lost. Its own report files of
# SageMaker that no run has.
os.environ.setdefault("SAGEMAKER_CONTAINER_LOG_LEVEL", "WARNING")
logging.getLogger("model_hosting_container_standards").disabled = True

if use_cpu_device():
    register_cpu_device()
else:
    register_resharding()
register_rollouts()
value_model_attention()
fixed_master_ports()
skip_engine_of_ascend()
answer_signal()
guard_output()


def require_plugin() -> str:
    """Check that `import verl` loads this plugin in every process and uses the device that the plugin selected.

    Returns:
        verl's name of the device's platform (`VERL_PLATFORM`). A run passes it on to all its processes: those on a
        machine without a GPU would otherwise select the CPU device, and weight transfers between the two would hang.

    Raises:
        ConfigError: verl does not load the plugin, or uses another device.
    """
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "verl_agent" not in policy.split(","):
        raise ConfigError(f"VERL_USE_EXTERNAL_PLUGINS={policy!r} keeps verl from loading verl_agent. Unset it.")
    if "verl_agent" not in {entry.name for entry in entry_points(group="verl.plugins")}:
        raise ConfigError("verl does not know the plugin verl_agent. Install this package: `pip install -e .`.")
    from verl.plugin.platform import get_platform
    from verl.plugin.platform.platform_manager import PlatformRegistry

    platform = get_platform()
    device = platform.device_name
    if (device == "cpu") != use_cpu_device():
        raise ConfigError(
            f"verl uses the device {device!r}, but this machine has {'no' if use_cpu_device() else 'an'} accelerator. "
            "Set VERL_PLATFORM=cpu to use the CPU, or unset it; `verl-agent doctor` shows what is installed."
        )
    names = PlatformRegistry.registered_names()
    return str(next(name for name in names if PlatformRegistry.get(name) is type(platform)))
