"""Encoding of episodes as rows of tokens, with a mask of the tokens that the model or the oracle wrote."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from verl_agent.agents.base import Agent
from verl_agent.config.settings import AgentEnv
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.models.hf import check_template_options
from verl_agent.rollout.chat_template import check_tools, choose_builder
from verl_agent.rollout.oracle import demonstrate
from verl_agent.rollout.tokens import EpisodeTokens, render_episode
from verl_agent.trace.record import EpisodeRecord, to_episode
from verl_agent.training.offline.preferences import Pair
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
        played: environment and agent. Other environments in records have the same agent and no options.

    Raises:
        ConfigError: no token builder agrees with the chat template, or this does not read an option.
    """

    def __init__(
        self,
        tokenizer: Any,
        model_type: str | None,
        played: AgentEnv,
        max_length: int,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer, self._max_length, self._template_options = tokenizer, max_length, template_options or {}
        check_template_options(tokenizer, self._template_options)
        self._builder = choose_builder(tokenizer, model_type, self._template_options)
        self._settings, self._envs = played.agent, {played.env.name: played}
        self._agents: dict[str, Agent] = {}

    def encode(self, record: EpisodeRecord, trained: Sequence[bool] | None = None) -> list[Row]:
        """Encode a recorded episode; see `_rows`.

        Args:
            trained: True for each turn whose reply is trained on; None for all turns.
        """
        return self._rows(to_episode(record), SHORTER_RECORDS, trained)

    def demonstrate(self, item: TaskItem, max_turns: int = 1) -> list[Row]:
        """Play a task with the oracle and encode the episode; see `_rows`.

        Args:
            max_turns: turn limit that the agent tells, if it tells the turns left.
        """
        played = self._played(item.env)
        player = played.new_agent()  # an agent that plays may have a state
        return self._rows(demonstrate(item, played.live.new_session(), player, max_turns), SHORTER_DEMONSTRATIONS)

    def _rows(self, episode: Episode, advice: str, trained: Sequence[bool] | None = None) -> list[Row]:
        """Encode an episode as one row, or one row a segment if the agent edits the context.

        Args:
            advice: last sentence of the message for a row that is too long.
            trained: see `encode`; a segment without a reply that is trained on gives no row.

        Returns:
            Rows whose `loss_mask` is 1 on every token of a reply and on the token that ends it. It is 0 on prompt and
            observations, and on the end of a truncated reply, which the model did not write.

        Raises:
            ConfigError: a row is longer than `max_length`, or the environment is not registered.
        """
        agent, rows = self._agent(episode.item.env), []
        tokens = EpisodeTokens(self._builder, self._tokenizer.eos_token_id, agent.tools, agent.marks)
        for segment in render_episode(tokens, self._tokenizer, agent, episode, trained):
            ids = torch.tensor(segment.prompt_ids + segment.response_ids)
            if len(ids) > self._max_length:
                raise ConfigError(
                    f"an episode of task {episode.item.id!r} has {len(ids)} tokens, but data.max_length="
                    f"{self._max_length}. {advice}"
                )
            mask = torch.tensor([0] * len(segment.prompt_ids) + segment.response_mask)
            rows.append({"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask})
        return rows

    def _played(self, name: str) -> AgentEnv:
        """Return an environment by its registered name; the same one for every episode."""
        if name not in self._envs:
            self._envs[name] = AgentEnv(env=EnvSettings(name), agent=self._settings)
        return self._envs[name]

    def _agent(self, name: str) -> Agent:
        """Return the agent that renders the episodes of an environment; the same one for every episode."""
        if name not in self._agents:
            self._agents[name] = agent = self._played(name).new_agent()
            check_tools(self._tokenizer, self._builder, agent, self._template_options)
        return self._agents[name]


PairRows = tuple[Row, Row]
"""Rows of the better and of the worse episode of a pair."""


def weighted(rows: Iterable[Row], weight: float = 1.0) -> list[Row]:
    """Return rows with a float `loss_mask` of the weight of their episode.

    verl's loss, the sum of masked log-probs divided by the sum of the mask, is then their weighted mean.
    """
    return [{**row, "loss_mask": (row["loss_mask"] * weight).float()} for row in rows]


class PairDataset(Dataset[PairRows]):
    """Rows of pairs of recorded episodes.

    Args:
        encoder: encoder whose agent keeps the whole context.
    """

    def __init__(self, pairs: Sequence[Pair], encoder: EpisodeEncoder) -> None:
        self.pairs = pairs
        self.rows: list[PairRows] = []
        for pair in pairs:
            (better,), (worse,) = (encoder.encode(side, pair.trained(side)) for side in (pair.better, pair.worse))
            self.rows.append((better, worse))

    @property
    def fingerprints(self) -> list[str]:
        """Hash of each pair."""
        return [pair.fingerprint for pair in self.pairs]

    def set_reference(self, log_probs_N2: torch.Tensor) -> None:
        """Add the log-probs of the reference model to the rows.

        Args:
            log_probs_N2: float `(N, 2)`, log-probability in nats of the replies of each pair, the better one first.
        """
        for (better, worse), (high, low) in zip(self.rows, log_probs_N2, strict=True):
            better["reference"], worse["reference"] = high, low

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> PairRows:
        return self.rows[index]


def collate_pairs(rows: Sequence[PairRows]) -> dict[str, torch.Tensor]:
    """Collate B pairs to a batch of 2B rows: better, worse, better, worse, ...

    Returns:
        `input_ids`, `position_ids` and `loss_mask` as jagged tensors `(2B, T)`, and `reference`, float `(2B,)`, if the
        rows have it.
    """
    flat = [row for pair in rows for row in pair]
    batch = {
        key: torch.nested.as_nested_tensor([row[key] for row in flat], layout=torch.jagged)
        for key in ("input_ids", "position_ids", "loss_mask")
    }
    if "reference" in flat[0]:
        batch["reference"] = torch.stack([row["reference"] for row in flat])
    return batch
