"""Recorded episodes as rows of tokens, with a mask of what the model wrote."""

from typing import Any

import torch
from omegaconf import OmegaConf

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.rollout.chat_template import check_tools, choose_builder
from verl_agent.rollout.tokens import EpisodeTokens, render_episode
from verl_agent.sections import section
from verl_agent.trace.record import EpisodeRecord, to_episode

Row = dict[str, torch.Tensor]
"""`input_ids`, `position_ids` (int64) and `loss_mask`, each `(T,)`, unpadded; the names are those of verl."""


class EpisodeEncoder:
    """Encodes episodes as RL renders them, from the first prompt to the last reply.

    The record holds text, so replies are encoded anew: the ids may differ from those that were sampled where a model
    wrote a word in unusual pieces.

    Args:
        tokenizer: of the model that learns.
        config: section `data`, with `env_name`, `env_options`, `agent`, `max_length` and `model_type`.

    Raises:
        ConfigError: no token builder agrees with the chat template.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._template_options = config.get("apply_chat_template_kwargs", {})
        self._builder = choose_builder(tokenizer, config.model_type, self._template_options)
        chosen: Any = OmegaConf.to_container(config.agent)
        self._words: AgentSettings = section("agent", AgentSettings, chosen)
        self._agents: dict[str, Agent] = {}

    def encode(self, record: EpisodeRecord) -> list[Row]:
        """Rows of one episode: several where the agent edits the context.

        Returns:
            Rows whose `loss_mask` is 1 on every token of a reply and on the token that ends it; 0 on prompt and
            observations, and on the end of a reply that a token budget cut: the model did not write it.

        Raises:
            ConfigError: a row is longer than `max_length`, or the environment is not registered.
        """
        agent = self._agent(record["env"])
        tokens = EpisodeTokens(self._builder, self._tokenizer.eos_token_id, agent.tools)
        rows = []
        for segment in render_episode(tokens, self._tokenizer, agent, to_episode(record)):
            ids = segment.prompt_ids + segment.response_ids
            rows.append(self._row(ids, [0] * len(segment.prompt_ids) + segment.response_mask, record["task"]))
        return rows

    def _row(self, ids: list[int], mask: list[int], task: str) -> Row:
        most = int(self._config.max_length)
        if len(ids) > most:
            raise ConfigError(
                f"a recorded episode of {task!r} has {len(ids)} tokens, data.max_length allows {most}. Raise it, or "
                "record episodes with a smaller data.max_response_length."
            )
        return {
            "input_ids": torch.tensor(ids),
            "position_ids": torch.arange(len(ids)),
            "loss_mask": torch.tensor(mask),
        }

    def _agent(self, env: str) -> Agent:
        if env not in self._agents:
            options: Any = OmegaConf.to_container(self._config.env_options) if env == self._config.env_name else {}
            agent = make_agent(self._words, make_env(env, options).action_format)
            if agent.tools:
                check_tools(self._tokenizer, self._builder, agent.tools, self._template_options)
            self._agents[env] = agent
        return self._agents[env]
