"""Encoding of episodes as rows of tokens, with a mask of the tokens that the model or the oracle wrote."""

from typing import Any

import torch
from omegaconf import OmegaConf

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.config.settings import agent_settings
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.rollout.chat_template import check_tools, choose_builder
from verl_agent.rollout.oracle import demonstrate
from verl_agent.rollout.tokens import EpisodeTokens, render_episode
from verl_agent.trace.record import EpisodeRecord, to_episode
from verl_agent.types import Episode, TaskItem

Row = dict[str, torch.Tensor]
"""`input_ids`, `position_ids` (int64) and `loss_mask`, each `(T,)`, unpadded; the names are those of verl."""


class EpisodeEncoder:
    """Encoder of recorded and demonstrated episodes, which renders them as RL does.

    An episode holds text, so its replies are tokenized again. The ids may differ from the sampled ones where a model
    chose an unusual tokenization.

    Args:
        tokenizer: tokenizer of the model to train.
        config: section `data`, with `env_name`, `env_options`, `agent`, `max_length` and `model_type`.

    Raises:
        ConfigError: no token builder agrees with the chat template.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._template_options = config.get("apply_chat_template_kwargs", {})
        self._builder = choose_builder(tokenizer, config.model_type, self._template_options)
        self._settings = agent_settings(config)
        options: Any = OmegaConf.to_container(config.env_options)
        self._options: dict[str, Any] = options
        self._checked: set[str] = set()

    def encode(self, record: EpisodeRecord) -> list[Row]:
        """Encode a recorded episode; see `_rows`."""
        return self._rows(to_episode(record), self._agent(record["env"]))

    def demonstrate(self, item: TaskItem) -> list[Row]:
        """Play a task with the oracle and encode the episode; see `_rows`."""
        agent = self._agent(item.env)
        return self._rows(demonstrate(item, make_env(item.env, self._options_of(item.env)), agent), agent)

    def _rows(self, episode: Episode, agent: Agent) -> list[Row]:
        """Encode an episode as one row, or one row a segment if the agent edits the context.

        Returns:
            Rows whose `loss_mask` is 1 on every token of a reply and on the token that ends it. It is 0 on prompt and
            observations, and on the end of a truncated reply, which the model did not write.

        Raises:
            ConfigError: a row is longer than `max_length`, or the environment is not registered.
        """
        tokens = EpisodeTokens(self._builder, self._tokenizer.eos_token_id, agent.tools)
        rows, most = [], int(self._config.max_length)
        for segment in render_episode(tokens, self._tokenizer, agent, episode):
            ids = torch.tensor(segment.prompt_ids + segment.response_ids)
            if len(ids) > most:
                raise ConfigError(
                    f"an episode of task {episode.item.id!r} has {len(ids)} tokens, but data.max_length={most}. "
                    "Raise it, or record episodes with a smaller data.max_response_length."
                )
            mask = torch.tensor([0] * len(segment.prompt_ids) + segment.response_mask)
            rows.append({"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask})
        return rows

    def _agent(self, env: str) -> Agent:
        agent = make_agent(self._settings, make_env(env, self._options_of(env)).action_format)
        if agent.tools and env not in self._checked:
            check_tools(self._tokenizer, self._builder, agent.tools, self._template_options)
        self._checked.add(env)
        return agent

    def _options_of(self, env: str) -> dict[str, Any]:
        """Return the adapter's options; recorded episodes of other environments use the defaults."""
        return self._options if env == self._config.env_name else {}
