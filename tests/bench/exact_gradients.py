"""Bias of the advantage estimators and of the aggregation of their loss: `make check-gradients`.

All episodes of a small decision process are enumerated, so the expectation of an estimated gradient is exact. A bias
is the share of that expectation that does not point along the policy gradient (the sine of the angle between them, in
percent); a factor of the whole gradient is no bias, because it only scales the learning rate.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

import verl_agent.training.estimators  # noqa: F401 - registers them
from tests.support.decision_process import SEEN, Play, Process, direction_error
from verl_agent.config.algorithms import CRITICS
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.rollout.tokens import Segment
from verl_agent.training.turn_batch import TurnBatch
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, TurnSpan, locate_turns, rewards_on_last_tokens

MODES = {
    "token-mean": "`token-mean`",
    "seq-mean-token-mean": "`seq-mean-token-mean`",
    "seq-mean-token-sum-norm": "`seq-mean-token-sum-norm`",
    "token-sum": "`token-sum`",
}
"""Values of `actor.loss_agg_mode`, and their names in the table. `seq-mean-token-sum` only has another factor."""
CONSTANT = 8
"""Divisor of `seq-mean-token-sum-norm`."""


@dataclass(frozen=True)
class Row:
    """Training row: a part of an episode.

    Attributes:
        play: index of the episode in `Process.plays`.
        sample: number of the episode in its batch.
        first: number of the row's first turn in its episode.
        segment: tokens of the row.
        written: positions of the row's written tokens among those of the episode.
    """

    play: int
    sample: int
    first: int
    segment: Segment
    written: slice


@dataclass(frozen=True)
class Estimate:
    """Estimate of advantages by one of the framework's settings.

    Attributes:
        estimator: `algorithm.adv_estimator`.
        by_std: `algorithm.norm_adv_by_std_in_grpo`.
        truncated: `credit.truncated`.
        split: each turn is a row of its own, as with an agent that edits its context.
        place: `credit.place`.
        normalised: use the advantages as they are; otherwise those before the normalisation over the batch.
    """

    estimator: str
    by_std: bool = True
    truncated: str = "as_is"
    split: bool = False
    place: str = "turn"
    normalised: bool = True

    def gradients(self, process: Process, batch: Sequence[int], modes: Iterable[str] = MODES) -> dict[str, Tensor]:
        """Return the gradient that an update with `batch` makes for each aggregation, float64 `(parameters,)`."""
        rows = [row for sample, play in enumerate(batch) for row in self._rows(process.plays[play], play, sample)]
        masks = [torch.tensor(row.segment.response_mask) for row in rows]
        advantages_BT, dropped = self._advantages(process, rows, masks)
        columns = {"response_mask": masks, "loss_mask": masks}
        if any(dropped):
            if all(dropped):  # the trainer makes no update
                return {mode: torch.zeros_like(process.logits) for mode in modes}
            present = {name: [mask.clone() for mask in masks] for name in columns}
            columns = TurnBatch((), masks, dropped, [False] * len(rows)).masks_without_dropped(present)
        mask_BT, loss_mask_BT = (pad_sequence(columns[name], batch_first=True) for name in columns)
        gradients = {}
        for mode in modes:
            losses_BT = torch.zeros(mask_BT.shape, dtype=torch.float64, requires_grad=True)
            loss = agg_loss(
                losses_BT,
                mask_BT,
                mode,
                batch_num_tokens=int(loss_mask_BT.sum()),
                global_batch_size=len(rows),
                loss_scale_factor=CONSTANT,
            )
            (weights_BT,) = torch.autograd.grad(loss, losses_BT)
            gradient = torch.zeros_like(process.logits)
            for row, mask_T, weight_T, advantage_T in zip(rows, masks, weights_BT, advantages_BT, strict=True):
                weighted_T = (weight_T * advantage_T)[: len(mask_T)][mask_T.bool()]
                gradient += weighted_T @ process.scores[row.play][row.written]
            gradients[mode] = gradient.detach()
        return gradients

    def _rows(self, play: Play, index: int, sample: int) -> list[Row]:
        if not self.split:
            bootstrapped = self.truncated == "bootstrap" and play.truncated
            segment = play.segment.followed_by([SEEN, SEEN]) if bootstrapped else play.segment  # as `add_last_state`
            return [Row(index, sample, 0, segment, slice(None))]
        rows, begin = [], 0
        for number, reply in enumerate(play.replies):
            segment = Segment([9], list(reply), [1] * len(reply), None)
            rows.append(Row(index, sample, number, segment, slice(begin, begin + len(reply))))
            begin += len(reply)
        return rows

    def _advantages(self, process: Process, rows: Sequence[Row], masks: Sequence[Tensor]) -> tuple[Tensor, list[bool]]:
        plays = [process.plays[row.play] for row in rows]
        mask_BT = pad_sequence(list(masks), batch_first=True)
        if self.estimator in FORMULAS:
            by_turn = [
                [value for value, reply in zip(values, play.replies, strict=True) for _ in reply]
                for values, play in zip(FORMULAS[self.estimator](plays), plays, strict=True)
            ]
            advantages_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
            advantages_BT[mask_BT.bool()] = torch.tensor([value for values in by_turn for value in values]).double()
            return advantages_BT, [False] * len(rows)
        turns = self._turns(process, rows, plays, masks)
        last = torch.tensor([len(mask) - 1 for mask in masks])
        rewards_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
        rewards_BT[torch.arange(len(rows)), last] = torch.tensor([play.total for play in plays], dtype=torch.float64)
        if self.estimator in ("gae", "reinforce_plus_plus") and (self.place == "turn" or self.truncated == "bootstrap"):
            rewards_BT = rewards_on_last_tokens(turns, mask_BT).double()
        values_BT = self._values(process, rows, plays, mask_BT)
        data = DataProto.from_dict(
            {"response_mask": mask_BT, "token_level_rewards": rewards_BT, "values": values_BT},
            non_tensors={"uid": np.array(["a"] * len(rows), dtype=object)},
        )
        config = AlgoConfig(adv_estimator=self.estimator, norm_adv_by_std_in_grpo=self.by_std)
        token = BATCH_TURNS.set(BatchTurns(turns, RewardShaping(place=self.place)))
        try:
            result = compute_advantage_for_multi_trajectories(
                data,
                [f"a_{row.sample}_{row.first}" for row in rows],
                self.estimator,
                norm_adv_by_std_in_grpo=self.by_std,
                config=config,
            )
        finally:
            BATCH_TURNS.reset(token)
        dropped = [self.truncated == "drop" and play.truncated for play in plays]
        if self.normalised:
            return result.batch["advantages"].double(), dropped
        baseline_BT = values_BT if self.estimator in CRITICS else torch.zeros_like(values_BT)
        return (result.batch["returns"] - baseline_BT).double(), dropped

    def _turns(
        self, process: Process, rows: Sequence[Row], plays: Sequence[Play], masks: Sequence[Tensor]
    ) -> list[TurnSpan]:
        fields = []
        for row, play in zip(rows, plays, strict=True):
            count = 1 if self.split else len(play.replies)
            rewards = play.rewards
            if self.place == "outcome":
                rewards = (0.0,) * (len(rewards) - 1) + (play.total,)
            fields.append(
                {
                    "rewards": list(rewards[row.first : row.first + count]),
                    "anchors": [str(state) for state in play.states[row.first : row.first + count]],
                    "first": row.first,
                    "truncated": self.truncated if play.truncated and self.truncated == "bootstrap" else "as_is",
                }
            )
        values = list(self._values(process, rows, plays, pad_sequence(list(masks), batch_first=True)))
        return locate_turns([f"a_{row.sample}_{row.first}" for row in rows], list(masks), fields, values)

    def _values(self, process: Process, rows: Sequence[Row], plays: Sequence[Play], mask_BT: Tensor) -> Tensor:
        """Return the values of a perfect critic of turns before each reply, float64 `(B, T)`; 0 without a critic."""
        values_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
        if self.estimator not in CRITICS:
            return values_BT
        for index, (row, play) in enumerate(zip(rows, plays, strict=True)):
            position = 0
            for number in range(row.first, row.first + (1 if self.split else len(play.replies))):
                length = len(play.replies[number])
                values_BT[index, position : position + length] = process.value(play.states[number], number)
                position += length + 1
            if self.truncated == "bootstrap" and play.truncated:
                values_BT[index, len(row.segment.response_ids) - 1] = process.value(play.last, process.turns)
        return values_BT


def expected(process: Process, size: int, estimate: Estimate) -> dict[str, Tensor]:
    """Return the exact expectation of a gradient over all batches of `size` episodes of one task, by aggregation."""
    sums = {mode: torch.zeros_like(process.logits, requires_grad=False) for mode in MODES}
    for probability, batch in process.batches(size):
        for mode, gradient in estimate.gradients(process, batch).items():
            sums[mode] += probability * gradient
    return sums


def trl(plays: Sequence[Play]) -> list[list[float]]:
    """Return the advantage of each turn as TRL's `GRPOTrainer` computes it with `scale_rewards="group"`.

    TRL's losses `dapo` and `bnpo` are a mean over tokens, `grpo` is one over sequences of means over their tokens, and
    `dr_grpo` divides by a constant.
    """
    totals = torch.tensor([play.total for play in plays], dtype=torch.float64)
    advantages = (totals - totals.mean()) / (totals.std() + 1e-4)
    return [[value] * len(play.replies) for value, play in zip(advantages.tolist(), plays, strict=True)]


def turn_number(plays: Sequence[Play]) -> list[list[float]]:
    """Return the sum of rewards from each turn on, each minus the mean reward of the other episodes in that turn.

    The mean leaves the episode itself out, so the only bias is that a longer episode subtracts more means (verl issue
    7244).
    """
    advantages = []
    for play in plays:
        left = []
        for number, reward in enumerate(play.rewards):
            others = [one.rewards[number] for one in plays if one is not play and len(one.rewards) > number]
            left.append(reward - sum(others) / max(1, len(others)))
        advantages.append([sum(left[number:]) for number in range(len(left))])
    return advantages


FORMULAS = {"trl": trl, "turn_number": turn_number}
"""Formulas of other implementations, which no setting of this package selects."""
DR_GRPO = Estimate("grpo", by_std=False, place="outcome")
ESTIMATES = {
    "`grpo`": Estimate("grpo", place="outcome"),
    "`grpo`, `norm_adv_by_std_in_grpo=false`": DR_GRPO,
    "`rloo`": Estimate("rloo", place="outcome"),
    "`reinforce_plus_plus`": Estimate("reinforce_plus_plus", place="outcome"),
    "`turn_returns`": Estimate("turn_returns"),
    "`turn_returns` before it is normalised": Estimate("turn_returns", normalised=False),
    "`rae`, first batch": Estimate("rae"),
    "`gae`, perfect critic": Estimate("gae"),
    "`turn_gae`, perfect critic": Estimate("turn_gae"),
    "`turn_gae` before it is normalised": Estimate("turn_gae", normalised=False),
    "`gigpo`": Estimate("gigpo"),
    "`gigpo`, `norm_adv_by_std_in_grpo=false`": Estimate("gigpo", by_std=False),
    "`rloo`, a row for each turn": Estimate("rloo", place="outcome", split=True),
    "`turn_gae`, a row for each turn": Estimate("turn_gae", split=True),
    "`rloo`, `credit.truncated=drop`": Estimate("rloo", place="outcome", truncated="drop"),
    "TRL's formula of GRPO": Estimate("trl"),
    "baseline by turn number (verl issue 7244)": Estimate("turn_number"),
}
EXACT = (
    *("`grpo`, `norm_adv_by_std_in_grpo=false`", "`rloo`", "`rloo`, a row for each turn"),
    *("`turn_returns` before it is normalised", "`turn_gae` before it is normalised"),
)
"""Rows whose sum over tokens must point along the policy gradient."""


def table(process: Process, size: int) -> list[str]:
    """Return the rows of the table for groups of `size` episodes.

    Raises:
        SystemExit: a row of `EXACT` has a bias.
    """
    lines = [f"| {process.turns} turns, groups of {size} | " + " | ".join(MODES.values()) + " |"]
    lines.append("|---" * (len(MODES) + 1) + "|")
    for name, estimate in ESTIMATES.items():
        found = expected(process, size, estimate)
        errors = {mode: 100 * direction_error(found[mode], process.policy_gradient) for mode in MODES}
        for mode in ("token-sum", "seq-mean-token-sum-norm")[: 1 if name.endswith("each turn") else 2]:
            if name in EXACT and errors[mode] > 1e-4:
                sys.exit(f"{name} has a bias of {errors[mode]:.2g} % with {mode}. It must have none.")
        shown = ["0" if error < 1e-4 else f"{error:.1f} %" for error in errors.values()]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return lines


if __name__ == "__main__":
    for turns, size in ((4, 2), (3, 2), (3, 4)) if "--all" in sys.argv else ((4, 2), (3, 2)):
        sys.stdout.write("\n".join(table(Process(turns), size)) + "\n\n")
