"""Torch datasets for verl's SFT trainer: episodes for supervised training, pairs of episodes for DPO.

verl creates them through `data.custom_cls`, and calls the name of the data `parquet_files`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import Dataset

from verl_agent.envs.tasks import sample_tasks, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.sections import section
from verl_agent.training.offline.encoding import EpisodeEncoder, Row
from verl_agent.training.offline.preferences import PreferenceSettings, first, make_pairs, pairable_records, split_pairs
from verl_agent.training.offline.selection import EpisodeSource, learned_turns, select_episodes, usable_records

PURPOSES = ("train", "validation")

PairRows = tuple[Row, Row]
"""Rows of the better and of the worse episode of a pair."""


class EpisodeDataset(Dataset[Row]):
    """Rows of episodes: one an episode, or one a segment if the agent edits the context.

    Rows are those of `EpisodeEncoder`, with a float `loss_mask` of the episode's weight. verl's loss, the sum of
    masked log-probs divided by the sum of the mask, is then their weighted mean.

    Args:
        parquet_files: `train:<tasks>` for the oracle's episodes of the tasks and the recorded ones;
            `validation:<tasks>` for the oracle's episodes only.
        tokenizer: tokenizer of the model to train.
        config: section `data`, with `env_name`, `env_options`, `agent`, `episodes`, `max_length` and
            `model_type`.
        processor: not used.
        max_samples: number of the oracle's episodes, sampled by a stable hash of the task ids; -1 for all.
    """

    def __init__(
        self, parquet_files: str, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        purpose, _, tasks = parquet_files.partition(":")
        if purpose not in PURPOSES or not tasks:
            raise ConfigError(f"data files must be `train:<tasks>` or `validation:<tasks>`, got {parquet_files!r}.")
        source: EpisodeSource = section("episodes", EpisodeSource, OmegaConf.to_container(config.episodes))
        encoder = EpisodeEncoder(tokenizer, config)
        self.rows: list[Row] = []
        if source.oracle or purpose == "validation":
            options: Any = OmegaConf.to_container(config.env_options)
            items = select_tasks(config.env_name, tasks, options)
            for item in sample_tasks(items, max_samples) if max_samples > 0 else items:
                self.rows += encoder.demonstrate(item)
        if source.records and purpose == "train":
            people = bool(source.authors)
            usable = usable_records(source.records, "episodes.records", labels=source.labels, operated=people)
            for episode in select_episodes(usable, source):
                for row in encoder.encode(episode.record, learned_turns(episode.record["turns"], source.authors)):
                    self.rows.append({**row, "loss_mask": row["loss_mask"] * episode.weight})
        for row in self.rows:
            row["loss_mask"] = row["loss_mask"].float()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]


class PairDataset(Dataset[PairRows]):
    """Rows of pairs of recorded episodes.

    Args:
        parquet_files: `train` or `validation`.
        tokenizer: tokenizer of the model to train.
        config: section `data`, with `preference`, `env_name`, `env_options`, `agent` (whose context keeps all),
            `max_length` and `model_type`.
        processor: not used.
        max_samples: number of pairs, the first by environment and task; -1 for all.
    """

    def __init__(
        self, parquet_files: str, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        if parquet_files not in PURPOSES:
            raise ConfigError(f"data files must be `train` or `validation`, got {parquet_files!r}.")
        settings: PreferenceSettings = section(
            "preference", PreferenceSettings, OmegaConf.to_container(config.preference)
        )
        train, held_out = split_pairs(
            make_pairs(pairable_records(settings), settings),
            settings.val_share,
        )
        self.pairs = first(train if parquet_files == "train" else held_out, max_samples)
        encoder = EpisodeEncoder(tokenizer, config)
        self.rows: list[PairRows] = []
        for pair in self.pairs:
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
