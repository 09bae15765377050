"""Supervised data for verl's SFT trainer: the oracle's episodes, recorded episodes, or both."""

from typing import Any

from omegaconf import OmegaConf
from torch.utils.data import Dataset

from verl_agent.errors import ConfigError
from verl_agent.offline.demonstrations import DemonstrationDataset
from verl_agent.offline.encoding import EpisodeEncoder, Row
from verl_agent.offline.selection import EpisodeSource, select_episodes, usable_records
from verl_agent.sections import section

PURPOSES = ("train", "validation")


class EpisodeDataset(Dataset[Row]):
    """One episode a row, several where the agent edits the context; verl's SFT trainer makes it by `data.custom_cls`.

    Rows are those of `EpisodeEncoder`, with a float `loss_mask` of the episode's weight: verl's loss, the sum of
    masked log-probs divided by the sum of the mask, is then their weighted mean.

    Args:
        parquet_files: `train:<tasks>`: the oracle's episodes of the tasks and the recorded ones; or
            `validation:<tasks>`: the oracle's alone. verl's name for data files.
        tokenizer: of the model that learns.
        config: section `data`, with `env_name`, `env_options`, `agent`, `episodes`, `max_length` and
            `model_type`.
        processor: not used.
        max_samples: keep so many of the oracle's episodes, drawn by a stable hash of their tasks; -1 for all.
    """

    def __init__(
        self, parquet_files: str, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        purpose, _, tasks = parquet_files.partition(":")
        if purpose not in PURPOSES or not tasks:
            raise ConfigError(f"data files must read `train:<tasks>` or `validation:<tasks>`, got {parquet_files!r}.")
        source: EpisodeSource = section("episodes", EpisodeSource, OmegaConf.to_container(config.episodes))
        self.rows: list[Row] = []
        if source.oracle or purpose == "validation":
            self.rows += DemonstrationDataset(tasks, tokenizer, config, processor, max_samples).rows
        if source.records and purpose == "train":
            encoder = EpisodeEncoder(tokenizer, config)
            for episode in select_episodes(usable_records(source.records, "episodes.records"), source):
                for row in encoder.encode(episode.record):
                    self.rows.append({**row, "loss_mask": row["loss_mask"] * episode.weight})
        for row in self.rows:
            row["loss_mask"] = row["loss_mask"].float()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]
