"""Check that overlays of reinforcement learning are not added to a recipe of another kind."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from verl_agent.config.catalogue import TRAINING
from verl_agent.config.keys import KINDS, leaves, reference, value_at
from verl_agent.errors import ConfigError

FOLDER = Path(__file__).with_name("overlay")
METHODS = {"sft": "SFT", "dpo": "DPO", "eval": "evaluation", "evolve": "AgentEvol"}
"""Names of the kinds of recipes besides reinforcement learning, by command."""


def check_overlay_kinds(plain: Mapping[Any, Any]) -> None:
    """Check that a recipe of another kind than reinforcement learning has no overlay with settings that it lacks.

    Overlays such as `size/8gpu` set nothing that SFT and DPO lack.

    Args:
        plain: the config that Hydra composed last, in plain values.

    Raises:
        ConfigError: an overlay is one of reinforcement learning.
    """
    kinds = ((base, command) for base, (section, command) in KINDS.items() if base != TRAINING and section in plain)
    own, command = next(kinds, (TRAINING, "train"))
    for group, name in _chosen() if own != TRAINING else ():
        foreign = [key for key in _keys(group, name) if _has(plain, key) and not _has(reference(own), key)]
        if foreign:
            raise ConfigError(
                f"overlay/{group}={name} is an overlay of reinforcement learning (`verl-agent train`), and this recipe "
                f"is one of {METHODS[command]} (`verl-agent {command}`), which has no setting {foreign[0]}. Leave the "
                "overlay out, or choose a recipe of `verl-agent train`; `verl-agent recipes list` names them."
            )


def _chosen() -> Sequence[tuple[str, str]]:
    """Return group and name of each overlay of the config that Hydra composed last."""
    from hydra.core.hydra_config import HydraConfig  # takes long to import, and Hydra has imported it if there is one

    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    groups = ((group.removeprefix("overlay/"), name) for group, name in choices.items() if group.startswith("overlay/"))
    return [(group, str(name)) for group, name in groups]


def _keys(group: str, name: str) -> Sequence[str]:
    """Return the keys that an overlay of this package sets; none for that of a user."""
    file = FOLDER / group / f"{name}.yaml"
    return [key for key, _ in leaves(OmegaConf.to_container(OmegaConf.load(file)))] if file.is_file() else []


def _has(node: Any, key: str) -> bool:
    """Return True if nested mappings have a dotted key."""
    absent = object()
    return value_at(node, key, absent) is not absent
