"""Sampler of asynchronous rollout with small groups."""

from typing import Any

from omegaconf import OmegaConf

from verl_agent.training.partial_sampler import PartialEpisodeSampler

SAMPLES = 2


def sampler(threshold: int = 3, refill: Any = None, **settings: Any) -> PartialEpisodeSampler:
    section = {"group_size": SAMPLES, "val_group_size": 1, "min_group_size": 2, "skip_uniform": False}
    return PartialEpisodeSampler(
        trainer_mode="colocate_async",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=threshold,
        max_off_policy_strategy="wait",
        sampler_kwargs=OmegaConf.create({**section, "max_env_error_rate": 0.5, **settings}),
        refill_fn=refill,
    )
