"""Rows for verl's SFT trainer: of episodes for supervised training, of pairs of episodes for DPO."""

from collections.abc import Iterable, Sequence

import torch
from torch.utils.data import Dataset

from verl_agent.training.offline.encoding import EpisodeEncoder, Row
from verl_agent.training.offline.preferences import Pair

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
        pairs: the pairs.
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
