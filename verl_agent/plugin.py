"""What `import verl` loads in every process (entry-point group `verl.plugins`).

verl drops a plugin that fails to import without a word, so the entry points of this package call
`require_plugin()` before anything starts.
"""

from verl_agent.errors import ConfigError
from verl_agent.platform.detect import use_cpu_device

if use_cpu_device():
    from verl_agent.platform.register import register_cpu_device

    register_cpu_device()


def require_plugin() -> None:
    """Check that `import verl` loaded this plugin, and that verl uses the device that it chose.

    Raises:
        ConfigError: verl did not load it; the message has the reason that verl kept to itself.
    """
    from verl.plugin.platform import get_platform

    expected = "cpu" if use_cpu_device() else None
    found = get_platform().device_name
    if (found == "cpu") != (expected == "cpu"):
        raise ConfigError(
            f"verl uses the device {found!r} though this machine has {'no' if expected else 'an'} accelerator: it did "
            "not load the plugin verl_agent. Install this package (`make setup`), and unset VERL_USE_EXTERNAL_PLUGINS."
        )
