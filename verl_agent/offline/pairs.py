"""Preference data: one row is a pair of episodes, which a batch lays side by side."""

from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import Dataset

from verl_agent.errors import ConfigError
from verl_agent.offline.encoding import EpisodeEncoder, Row
from verl_agent.offline.preferences import PreferenceSettings, first, make_pairs, split_pairs
from verl_agent.offline.selection import usable_records
from verl_agent.sections import section

Sides = tuple[Row, Row]
"""The better and the worse episode of a pair."""


class PairDataset(Dataset[Sides]):
    """One pair a row; verl's SFT trainer creates it through `data.custom_cls`.

    Args:
        parquet_files: `train` or `validation`; verl's name for data files.
        tokenizer: of the model that learns.
        config: section `data`, with `preference`, `env_name`, `env_options`, `agent` (whose context keeps all),
            `max_length` and `model_type`.
        processor: not used.
        max_samples: keep so many of the pairs, by environment and task; -1 for all.
    """

    def __init__(
        self, parquet_files: str, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        if parquet_files not in ("train", "validation"):
            raise ConfigError(f"data files must read `train` or `validation`, got {parquet_files!r}.")
        settings: PreferenceSettings = section(
            "preference", PreferenceSettings, OmegaConf.to_container(config.preference)
        )
        train, held_out = split_pairs(
            make_pairs(usable_records(settings.records, "preference.records"), settings), settings.val_share
        )
        self.pairs = first(train if parquet_files == "train" else held_out, max_samples)
        encoder = EpisodeEncoder(tokenizer, config)
        self.rows: list[Sides] = []
        for pair in self.pairs:
            (better,), (worse,) = encoder.encode(pair.better), encoder.encode(pair.worse)
            self.rows.append((better, worse))

    @property
    def fingerprints(self) -> list[str]:
        """A hash of each pair."""
        return [pair.fingerprint for pair in self.pairs]

    def set_reference(self, log_probs_N2: torch.Tensor) -> None:
        """Add what the reference model gives to the rows.

        Args:
            log_probs_N2: float `(N, 2)`, log-probability in nats of the replies of each pair, the better one first.
        """
        for (better, worse), (high, low) in zip(self.rows, log_probs_N2, strict=True):
            better["reference"], worse["reference"] = high, low

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sides:
        return self.rows[index]


def collate_pairs(rows: Sequence[Sides]) -> dict[str, torch.Tensor]:
    """A batch of B pairs as 2B rows: better, worse, better, worse, ...

    Returns:
        `input_ids`, `position_ids` and `loss_mask` as jagged tensors `(2B, T)`, and `reference`, float `(2B,)`, where
        the rows have it.
    """
    flat = [row for pair in rows for row in pair]
    batch = {
        key: torch.nested.as_nested_tensor([row[key] for row in flat], layout=torch.jagged)
        for key in ("input_ids", "position_ids", "loss_mask")
    }
    if "reference" in flat[0]:
        batch["reference"] = torch.stack([row["reference"] for row in flat])
    return batch
