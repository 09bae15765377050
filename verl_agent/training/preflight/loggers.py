"""Check of `trainer.logger`: the `file` logger is required, since progress and curves read it."""

from collections.abc import Sequence
from importlib.util import find_spec

from verl_agent.errors import ConfigError, did_you_mean

LOGGERS = {
    "file": None,
    "console": None,
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "clearml": "clearml",
    "trackio": "trackio",
    "vemlp_wandb": "volcengine_ml_platform",
    "rl_insight": "rl_insight",
}
"""Loggers of verl 0.9.1 (utils/tracking.py) and the module that each needs."""


def check_loggers(names: object) -> None:
    """Check that all loggers exist and are installed, and that `file` is among them."""
    listed = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else [names]
    for name in listed:
        if not isinstance(name, str) or name not in LOGGERS:
            raise ConfigError(f"trainer.logger={name!r} is not known. {did_you_mean(str(name), LOGGERS)}")
        module = LOGGERS[name]
        if module is not None and find_spec(module) is None:
            raise ConfigError(f"trainer.logger={name!r} needs a package that is not installed: pip install {module}")
    if "file" not in listed:
        raise ConfigError(
            f"trainer.logger={listed} lacks 'file', from which progress, curves and the best checkpoint are read."
        )
