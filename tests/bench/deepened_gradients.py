"""Bias of a group that goes on to a higher turn limit while none of its episodes has succeeded: `make check-gradients`.

The limit of such a group depends on its own successes (`horizon.deepen`), so its update estimates neither the gradient
of the return at the low limit nor that at the high one. All groups of a small process with returns of 0 and 1 are
enumerated, and the exact expectation of the update by `rloo` is compared with three gradients. See `exact_gradients`
for the meaning of a bias.
"""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support.decision_process import Process, direction_error


@dataclass(frozen=True)
class Deepened:
    """Exact expectations for groups that play up to `limit` turns, and on to `process.turns` without a success.

    Attributes:
        estimated: expected update, float64 `(parameters,)`, as all others.
        own: gradient of the expected mean return of such groups.
        low: gradient of the expected return at the low limit.
        high: gradient of the expected return at the high limit.
        share: share of the groups that go on.
    """

    estimated: Tensor
    own: Tensor
    low: Tensor
    high: Tensor
    share: float


def deepened(process: Process, limit: int, size: int, bar: float) -> Deepened:
    """Return the expectations for groups of `size` episodes.

    An episode succeeds if the policy stops it and the reward is at least `bar`; its return is then 1, else 0.
    """
    high_R = [float(not play.truncated and play.total >= bar) for play in process.plays]
    cut = [len(play.replies) > limit for play in process.plays]
    low_R = [0.0 if ended else value for value, ended in zip(high_R, cut, strict=True)]
    scores = {turns: [_score(process, index, turns) for index in range(len(cut))] for turns in (limit, process.turns)}
    estimated, own, share = torch.zeros_like(process.logits), torch.zeros_like(process.logits), 0.0
    for probability, group in process.batches(size):
        goes_on = any(cut[index] for index in group) and not any(low_R[index] for index in group)
        returns = [(high_R if goes_on else low_R)[index] for index in group]
        share += probability * goes_on
        for index, value in zip(group, returns, strict=True):
            score = scores[process.turns if goes_on else limit][index]
            others = (sum(returns) - value) / (size - 1)
            estimated = estimated + probability * (value - others) * score
            own = own + probability * sum(returns) / size * score  # by the log-derivative of the whole group
    return Deepened(estimated.detach(), own.detach(), _gradient(process, low_R), _gradient(process, high_R), share)


def _score(process: Process, index: int, turns: int) -> Tensor:
    """Return the gradient of the log-prob of the first `turns` turns of an episode."""
    written = sum(map(len, process.plays[index].replies[:turns]))
    return process.scores[index][:written].sum(0)


def _gradient(process: Process, returns: list[float]) -> Tensor:
    pairs = zip(process.plays, returns, strict=True)
    return process.gradient(sum((process.probability(play) * value for play, value in pairs), torch.tensor(0.0)))


def main() -> None:
    lines = [
        "| turns | group | goes on | from its own return | from the high limit | low from high |",
        "|---" * 6 + "|",
    ]
    for turns, limit, size in ((4, 2, 2), (3, 1, 2), (3, 1, 4)):
        found = deepened(Process(turns, dense=False), limit, size, bar=0.6)
        shares = (
            direction_error(found.estimated, found.own),
            direction_error(found.estimated, found.high),
            direction_error(found.low, found.high),
        )
        shown = " | ".join(f"{share:.1%}" for share in (found.share, *shares))
        lines.append(f"| {limit} to {turns} | {size} | {shown} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
