"""Supervised data for verl's SFT trainer: what an oracle says, played and rendered as RL renders it."""

from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import Dataset

from verl_agent.agents.registry import make_agent
from verl_agent.config.settings import agent_settings
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import sample_tasks, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.rollout.chat_template import check_tools, choose_builder
from verl_agent.rollout.oracle import demonstrate
from verl_agent.rollout.tokens import EpisodeTokens, Segment, render_episode
from verl_agent.types import TaskItem


class DemonstrationDataset(Dataset[dict[str, torch.Tensor]]):
    """One oracle episode a task; verl's SFT trainer creates it through `data.custom_cls`.

    An episode makes several rows where the agent edits the context.

    Each row holds `input_ids`, `position_ids` and `loss_mask`, int64 `(T,)`, unpadded; the mask is 1 on what
    the oracle wrote, each reply with its end-of-turn token.

    Args:
        parquet_files: the tasks, see `verl_agent.envs.tasks.select_tasks`; verl's name for data files.
        tokenizer: of the model that learns.
        config: section `data`, with `env_name`, `env_options`, `agent`, `max_length` and `model_type`.
        processor: not used.
        max_samples: keep so many tasks, drawn by a stable hash of their ids; -1 for all.
    """

    def __init__(
        self, parquet_files: str, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        options: Any = OmegaConf.to_container(config.env_options)
        tasks = select_tasks(config.env_name, parquet_files, options)
        env = make_env(config.env_name, options)
        words = agent_settings(config)
        template_options = config.get("apply_chat_template_kwargs", {})
        builder = choose_builder(tokenizer, config.model_type, template_options)
        self.rows: list[dict[str, torch.Tensor]] = []
        for item in sample_tasks(tasks, max_samples) if max_samples > 0 else tasks:
            agent = make_agent(words, env.action_format)
            if agent.tools:
                check_tools(tokenizer, builder, agent.tools, template_options)
            episode = demonstrate(item, env.new_session(), agent)
            tokens = EpisodeTokens(builder, tokenizer.eos_token_id, agent.tools)
            for segment in render_episode(tokens, tokenizer, agent, episode):
                self._add(item, segment, int(config.max_length))

    def _add(self, item: TaskItem, segment: Segment, max_length: int) -> None:
        ids = torch.tensor(segment.prompt_ids + segment.response_ids)
        if len(ids) > max_length:
            raise ConfigError(
                f"the demonstration of {item.id!r} has {len(ids)} tokens, data.max_length allows {max_length}."
            )
        self.rows.append(
            {
                "input_ids": ids,
                "position_ids": torch.arange(len(ids)),
                "loss_mask": torch.tensor([0] * len(segment.prompt_ids) + segment.response_mask),
            }
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index]
