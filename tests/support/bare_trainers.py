"""Settings of trainers that tests make without their constructor, which starts worker processes."""

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from verl_agent.config.plan import RunPlan
from verl_agent.training.grouped_batches import GroupedBatches

PLAYED = {
    "env": {"name": "guess_number"},
    "horizon": {"max_turns": [2]},
    "episode": {"max_tokens_per_turn": 8},
    "agent": {"name": "raw"},
}
"""Settings without which a run has no environment."""


def configure(made: GroupedBatches, *settings: Mapping[str, Any]) -> None:
    """Give a trainer the config that verl reads and the plan of the same settings; later ones override earlier ones."""
    made.config = OmegaConf.merge(*map(OmegaConf.create, (PLAYED, *settings)))
    made.plan = RunPlan.of(OmegaConf.to_container(made.config))
