"""Metrics of tokens by the number of their turn, and by the age of the weights that sampled them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from verl_agent.trace.metrics import TURN_BANDS, turn_band
from verl_agent.training.groups import episode_key
from verl_agent.training.turns import TurnSpan, values_on_tokens

COLUMNS = ("advantages", "entropy", "old_log_probs", "ref_log_prob", "rollout_log_probs")
"""Columns of a batch from which the metrics are computed; a metric whose column is absent is left out."""


CLIPPED, WRITTEN = "actor/turn_clipped/", "actor/turn_written/"
"""Prefixes of the counts of `clip_counts` (`verl_agent.training.policy_losses`); a band of turns follows."""


def clip_fractions(metrics: Mapping[str, Any], by_turn: bool) -> dict[str, Any]:
    """Return the metrics of an update with `turn/<turns>/clip_fraction` in place of the counts of each band.

    verl averages both counts over the micro-batches of the update, so a fraction weighs its tokens equally.

    Args:
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


def staleness_metrics(
    keys: Sequence[str],
    versions: Sequence[Tensor],
    present: int,
    log_probs: tuple[Sequence[Tensor], Sequence[Tensor]] | None,
) -> dict[str, float]:
    """Return the metrics `staleness/...` of `verl_agent.trace.metrics`.

    The policy changes with each update. Tokens of older weights therefore differ between engine and trainer even where
    both compute the same, so the two are compared by staleness: the number of updates since the token was sampled.

    Args:
        versions: int64 `(T,)` of each row, see `TurnBatch.versions`.
        present: version of the trainer's weights before the update.
        log_probs: float `(T,)` of each row, those of the trainer before the update and those of the engine; None if
            the trainer did not compute its own.
    """
    known = [versions_T >= 0 for versions_T in versions]
    stale_N = torch.cat([present - versions_T[kept] for versions_T, kept in zip(versions, known, strict=True)])
    if not len(stale_N):
        return {}
    seen: dict[str, set[int]] = {}
    for key, versions_T, kept in zip(keys, versions, known, strict=True):
        if kept.any():
            seen.setdefault(episode_key(key), set()).update(versions_T[kept].unique().tolist())
    metrics = {
        "staleness/mean": stale_N.float().mean().item(),
        "staleness/max": float(stale_N.max()),
        "staleness/mixed_episodes": sum(len(found) > 1 for found in seen.values()) / len(seen),
    }
    for staleness in stale_N.unique().tolist():
        chosen_N = stale_N == staleness
        metrics[f"staleness/{staleness}/tokens"] = chosen_N.float().mean().item()
        if log_probs:
            trainer_N, engine_N = (
                torch.cat([row_T[kept] for row_T, kept in zip(rows, known, strict=True)]).float()[chosen_N]
                for rows in log_probs
            )
            metrics[f"staleness/{staleness}/rollout_kl"] = divergence(trainer_N - engine_N).mean().item()
            metrics[f"staleness/{staleness}/probs_diff"] = (trainer_N.exp() - engine_N.exp()).abs().mean().item()
    return metrics
