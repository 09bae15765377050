"""Encoding of episodes as rows of tokens, with a mask of the tokens that the model or the oracle wrote."""

from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import OmegaConf

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.config.settings import agent_settings
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.rollout.chat_template import check_tools, choose_builder
from verl_agent.rollout.oracle import demonstrate
from verl_agent.rollout.tokens import EpisodeTokens, render_episode
from verl_agent.trace.record import EpisodeRecord, to_episode
from verl_agent.types import Episode, TaskItem

Row = dict[str, torch.Tensor]
"""`input_ids`, `position_ids` (int64) and `loss_mask`, each `(T,)`, unpadded; the names are those of verl."""
SHORTER_RECORDS = "Raise it, or record episodes with a smaller data.max_response_length."
SHORTER_DEMONSTRATIONS = "Raise it, or choose tasks with shorter demonstrations: env.train_tasks, env.eval_tasks."
"""Advice for episodes that are too long."""


class EpisodeEncoder:
    """Encoder of recorded and demonstrated episodes, which renders them as RL does.

    An episode holds text, so its replies are tokenized again. The ids may differ from the sampled ones where a model
    chose an unusual tokenization.

    Args:
        tokenizer: tokenizer of the model to train.
        config: section `data`, with `env_name`, `env_options`, `agent`, `max_length`, `model_type` and `episodes`.

    Raises:
        ConfigError: no token builder agrees with the chat template.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._template_options = config.get("apply_chat_template_kwargs", {})
        self._builder = choose_builder(tokenizer, config.model_type, self._template_options)
        self._settings = agent_settings(config)
        self._max_turns = int(OmegaConf.select(config, "episodes.max_turns") or 1)
        options: Any = OmegaConf.to_container(config.env_options)
        self._options: dict[str, Any] = options
        self._envs: dict[str, tuple[EnvAdapter, Agent]] = {}

    def encode(self, record: EpisodeRecord, trained: Sequence[bool] | None = None) -> list[Row]:
        """Encode a recorded episode; see `_rows`.

        Args:
            record: recorded episode.
            trained: True for each turn whose reply is trained on; None for all turns.
        """
        _, agent = self._env(record["env"])
        return self._rows(to_episode(record), agent, SHORTER_RECORDS, trained)

    def demonstrate(self, item: TaskItem) -> list[Row]:
        """Play a task with the oracle and encode the episode; see `_rows`."""
        env, agent = self._env(item.env)
        player = make_agent(self._settings, env.action_format)  # an agent that plays may have a state
        return self._rows(demonstrate(item, env.new_session(), player, self._max_turns), agent, SHORTER_DEMONSTRATIONS)

    def _rows(self, episode: Episode, agent: Agent, advice: str, trained: Sequence[bool] | None = None) -> list[Row]:
        """Encode an episode as one row, or one row a segment if the agent edits the context.

        Args:
            episode: episode to encode.
            agent: agent that renders it.
            advice: last sentence of the message for a row that is too long.
            trained: see `encode`; a segment without a reply that is trained on gives no row.

        Returns:
            Rows whose `loss_mask` is 1 on every token of a reply and on the token that ends it. It is 0 on prompt and
            observations, and on the end of a truncated reply, which the model did not write.

        Raises:
            ConfigError: a row is longer than `max_length`, or the environment is not registered.
        """
        tokens = EpisodeTokens(self._builder, self._tokenizer.eos_token_id, agent.tools)
        rows, most = [], int(self._config.max_length)
        for segment in render_episode(tokens, self._tokenizer, agent, episode, trained):
            ids = torch.tensor(segment.prompt_ids + segment.response_ids)
            if len(ids) > most:
                raise ConfigError(
                    f"an episode of task {episode.item.id!r} has {len(ids)} tokens, but data.max_length={most}. "
                    f"{advice}"
                )
            mask = torch.tensor([0] * len(segment.prompt_ids) + segment.response_mask)
            rows.append({"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask})
        return rows

    def _env(self, name: str) -> tuple[EnvAdapter, Agent]:
        """Return an environment and the agent that renders its episodes; the same ones for every episode.

        Args:
            name: registered name; other environments than that of section `data` have their default options.
        """
        if name not in self._envs:
            env = make_env(name, self._options if name == self._config.env_name else {})
            agent = make_agent(self._settings, env.action_format)
            if agent.tools:
                check_tools(self._tokenizer, self._builder, agent.tools, self._template_options)
            self._envs[name] = env, agent
        return self._envs[name]
