"""Advantage estimator that compares an episode with the others of its task, and weights bad episodes less."""

from collections import defaultdict

import torch
from torch import Tensor

from verl_agent import Estimator, EstimatorBatch


def leave_one_out(batch: EstimatorBatch, *, below: float = 1.0) -> Tensor:
    """Return the return of each episode minus the mean of the others of its task (RLOO, arXiv 2402.14740).

    Args:
        batch: episodes of the update.
        below: factor of negative advantages (arXiv 2506.01347 trains on bad samples less, or more).
    """
    returns: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for turn in batch.turns:
        returns[turn.group][turn.episode] += turn.reward
    advantages = []
    for turn in batch.turns:
        own, group = returns[turn.group][turn.episode], returns[turn.group]
        others = (sum(group.values()) - own) / max(len(group) - 1, 1)
        advantages.append((own - others) * (below if own < others else 1.0))
    return batch.on_tokens(advantages)


def by_hand(batch: EstimatorBatch, *, below: float = 1.0) -> Tensor:
    """Return the same in matrices: (R - mean of others) with the episodes as rows."""
    episodes = {turn.episode: turn.group for turn in batch.turns}
    names, groups = list(episodes), list(episodes.values())
    played_NE = torch.tensor([[turn.episode == name for name in names] for turn in batch.turns], dtype=torch.float32)
    returns_E = torch.tensor([turn.reward for turn in batch.turns]) @ played_NE
    same_EE = torch.tensor([[float(one == other) for other in groups] for one in groups])
    others_EE = same_EE - torch.eye(len(names))
    advantages_E = returns_E - others_EE @ returns_E / others_EE.sum(1).clamp(min=1)
    weighted_E = torch.where(advantages_E < 0, below * advantages_E, advantages_E)
    return batch.on_tokens((played_NE @ weighted_E).tolist())


LEAVE_ONE_OUT = Estimator(leave_one_out, grouped=True, uniform_is_zero=True, reference=by_hand)
