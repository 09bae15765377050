"""Metrics by the number of the turn: from the tokens of a batch before its update, and the clip fraction in it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from verl_agent.trace.metrics import TURN_BANDS, turn_band
from verl_agent.training.turns import TurnSpan, values_on_tokens

COLUMNS = ("advantages", "entropy", "old_log_probs", "ref_log_prob", "rollout_log_probs")
"""Columns of a batch from which the metrics are computed; a metric whose column is absent is left out."""


CLIPPED, WRITTEN = "actor/turn_clipped/", "actor/turn_written/"
"""Prefixes of the counts of `clip_counts` (`verl_agent.training.policy_losses`); a band of turns follows."""


def clip_fractions(metrics: Mapping[str, Any], by_turn: bool) -> dict[str, Any]:
    """Return the metrics of an update with `turn/<turns>/clip_fraction` in place of the counts of each band.

    verl averages both counts over the micro-batches of the update, so a fraction weighs its tokens equally.

    Args:
        metrics: metrics of the update.
        by_turn: True if the turns of a row are those of an episode from its first one, and each is a run of ones in the
            mask of the loss; else the fractions are left out.
    """
    fractions = {
        f"turn/{label}/clip_fraction": metrics[CLIPPED + label] / metrics[WRITTEN + label]
        for label in TURN_BANDS
        if by_turn and metrics.get(WRITTEN + label)
    }
    return {name: value for name, value in metrics.items() if not name.startswith((CLIPPED, WRITTEN))} | fractions


def divergence(log_ratio_BT: Tensor) -> Tensor:
    """Return the estimate k3 of the KL divergence, r - 1 - log r, of samples from the denominator of the ratio r."""
    return log_ratio_BT.exp() - 1 - log_ratio_BT


def turn_metrics(
    turns: Sequence[TurnSpan], columns: Mapping[str, Sequence[Tensor]], clip: tuple[float, float] | None
) -> dict[str, float]:
    """Return the mean over the tokens of all turns of each band, as `turn/<turns>/<name>`.

    `ratio_outside` applies the limits of the clip range to the ratio between trainer and engine before the update;
    `clip_fractions` has the tokens that the update clips.

    Args:
        turns: turns of the batch.
        columns: those of `COLUMNS` that the batch has, float `(T,)` for each row.
        clip: `clip_ratio_low` and `clip_ratio_high` of the actor; None if its loss does not clip ratios of tokens.
    """
    padded = {name: pad_sequence(list(rows), batch_first=True).float() for name, rows in columns.items()}
    if not turns or "advantages" not in padded:
        return {}
    band_BT = values_on_tokens(turns, [turn_band(turn.number + 1) + 1.0 for turn in turns], padded["advantages"])
    written_BT = band_BT > 0
    band_N = band_BT[written_BT].long() - 1
    counts_K = torch.bincount(band_N, minlength=len(TURN_BANDS))
    low, high = clip or (math.inf, math.inf)
    derived: Mapping[str, tuple[tuple[str, ...], Callable[..., Tensor]]] = {
        "advantage": (("advantages",), lambda advantage: advantage),
        "entropy": (("entropy",), lambda entropy: entropy),
        "ref_kl": (("ref_log_prob", "old_log_probs"), lambda ref, old: divergence(ref - old)),
        "rollout_kl": (("old_log_probs", "rollout_log_probs"), lambda old, engine: divergence(old - engine)),
        "ratio_outside": (
            ("old_log_probs", "rollout_log_probs"),
            lambda old, engine: (((old - engine).exp() - 1 < -low) | ((old - engine).exp() - 1 > high)).float(),
        ),
    }
    metrics = {}
    for name, (needed, compute) in derived.items():
        if not all(column in padded for column in needed) or (name == "ratio_outside" and clip is None):
            continue
        value_N = compute(*(padded[column][written_BT] for column in needed))
        sums_K = torch.bincount(band_N, weights=value_N, minlength=len(TURN_BANDS))
        for index, label in enumerate(TURN_BANDS):
            if counts_K[index]:
                metrics[f"turn/{label}/{name}"] = (sums_K[index] / counts_K[index]).item()
    return metrics
