"""Metrics of the age of the weights that sampled the tokens of a batch, and of engine against trainer by that age."""

from collections.abc import Sequence

import torch
from torch import Tensor

from verl_agent.training.groups import episode_key
from verl_agent.training.turn_metrics import divergence


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
        keys: verl's key of each row.
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
