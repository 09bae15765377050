"""Update of a small policy, and of its critic, with the estimators and losses of a training run.

Letters at the end of names: B rows, L tokens of a row, T = L - 1 its tokens after the first, V words.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import agg_loss, compute_value_loss, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.config import omega_conf_to_dataclass

import verl_agent.training.policy_losses  # noqa: F401 - registers what it defines
from verl_agent.config.algorithms import GROUPED, TURN_CRITICS
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.horizon import Horizon
from verl_agent.returns import is_uniform, sum_rewards
from verl_agent.sections import section
from verl_agent.study.tiny.playing import SegmentRow
from verl_agent.training.batch_order import BatchRow, order_batch
from verl_agent.training.groups import group_of
from verl_agent.training.own_estimators import register
from verl_agent.training.turn_batch import TurnBatch
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, TurnSpan, locate_turns, rewards_on_last_tokens

PART = 64
"""Rows of a forward and backward pass, of similar length."""
THIRDS = ("noise_first", "noise_middle", "noise_last")
"""Measurements of the gradient by thirds of the turn limit of evaluations."""


class Batch:
    """Rows of a step: ids `(B, L)`; mask and log-probs of sampling `(B, T)`, 0 at prompts and padding."""

    def __init__(self, rows: Sequence[SegmentRow]) -> None:
        self.rows, self.keys = rows, [row.key for row in rows]
        self.ids_BL = padded([[*one.segment.prompt_ids, *one.segment.response_ids] for one in rows]).long()
        before = [[0] * (len(row.segment.prompt_ids) - 1) for row in rows]
        masks = [[*zeros, *row.segment.response_mask] for zeros, row in zip(before, rows, strict=True)]
        olds = [[*zeros, *(row.segment.response_log_probs or ())] for zeros, row in zip(before, rows, strict=True)]
        self.mask_BT, self.old_BT, self.lengths = padded(masks), padded(olds), [len(mask) for mask in masks]

    @property
    def masks(self) -> list[Tensor]:
        """Mask of each row, `(T,)`, without padding."""
        return self.unpadded(self.mask_BT)

    def unpadded(self, values_BT: Tensor) -> list[Tensor]:
        """Return the rows of a tensor without padding."""
        return [row[:length] for row, length in zip(values_BT, self.lengths, strict=True)]

    def parts(self, rows: Sequence[int]) -> list[tuple[list[int], int]]:
        """Return rows in parts of similar length, each with the longest length T of its rows."""
        order = sorted(rows, key=lambda row: self.lengths[row])
        parts = [order[start : start + PART] for start in range(0, len(order), PART)]
        return [(part, self.lengths[part[-1]]) for part in parts]

    def before_tokens(self, model: PreTrainedModel, rows: Sequence[int], length: int) -> Tensor:
        """Return the logits of a model before each token but the first, `(B, T, V)`."""
        logits: Tensor = model(self.ids_BL[rows, :length], use_cache=False).logits
        return logits

    def log_probs(self, model: PreTrainedModel, rows: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """Return the log-probs of the tokens, `(B, T)`, and of all words, `(B, T, V)`."""
        all_BTV = torch.log_softmax(self.before_tokens(model, rows, length), -1)
        return all_BTV.gather(-1, self.ids_BL[rows, 1 : length + 1, None])[..., 0], all_BTV


def padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """Return float `(B, L)`, padded with 0 at the end."""
    return pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)


class Learner:
    """Policy, critic and their optimizers; the reference is that of a KL loss, and the seed that of mini-batches."""

    def __init__(
        self,
        config: Mapping[str, Any],
        shaping: RewardShaping,
        policy: PreTrainedModel,
        critic: PreTrainedModel | None,
        reference: PreTrainedModel | None,
        seed: int,
    ) -> None:
        actor = config["actor_rollout_ref"]["actor"]
        register(config["algorithm"]["adv_estimator"])
        self._algorithm, self._actor = omega_conf_to_dataclass(config["algorithm"]), omega_conf_to_dataclass(actor)
        self._shaping, self._seed, self._value_clip = shaping, seed, config["critic"]["cliprange_value"]
        self._mini_batch = actor["ppo_mini_batch_size"] * config["actor_rollout_ref"]["rollout"]["n"]
        self._policy, self._critic, self._reference = policy, critic, reference
        self._baselines: dict[str, float] = {}
        self._eval_turns = section("horizon", Horizon, config["horizon"]).turns_for_evaluation()
        self._trained = {"policy": (policy, actor["optim"]["lr"])}
        if critic is not None:
            self._trained["critic"] = (critic, config["critic"]["optim"]["lr"])
        self._optimizers = self._new_optimizers()

    def _new_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            name: torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
            for name, (model, rate) in self._trained.items()
        }

    def begin_stage(self) -> None:
        """Replace the optimizers by new ones, and the reference by the present policy."""
        self._optimizers = self._new_optimizers()
        if self._reference is not None:
            self._reference.load_state_dict(self._policy.state_dict())

    def saved(self) -> dict[str, Any]:
        """Return weights, states of optimizers, baselines of roles and weights of the reference, for a checkpoint."""
        models = {name: model for name, (model, _) in self._trained.items()}
        states = {name: [models[name].state_dict(), one.state_dict()] for name, one in self._optimizers.items()}
        reference = self._reference.state_dict() if self._reference is not None else None
        return {**states, "baselines": self._baselines, "reference": reference}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the state that `saved` returned."""
        for name, optimizer in self._optimizers.items():
            self._trained[name][0].load_state_dict(saved[name][0])
            optimizer.load_state_dict(saved[name][1])
        self._baselines = dict(saved["baselines"])
        if self._reference is not None:
            self._reference.load_state_dict(saved["reference"])

    def update(self, rows: Sequence[SegmentRow], step: int) -> dict[str, float]:
        """Train on the rows of one step.

        Returns:
            `signal`: share of groups whose episodes differ in return; `uniform_turns`: share of the turns in the other
            groups; `grad_norm`: mean norm before clipping;
            `noise_first`, `noise_middle`, `noise_last`: mean squared norm of the gradient of a token's logits, in turns
            of the first, second and last third of the evaluation's turn limit; it shows in which turns the variance is.
        """
        if self._algorithm.adv_estimator in GROUPED:
            sizes = Counter(group_of(key) for key in {row.key.rpartition("_")[0] for row in rows})
            rows = [row for row in rows if sizes[group_of(row.key.rpartition("_")[0])] > 1]
        if not rows:
            return {"signal": 0.0, "uniform_turns": 0.0, "grad_norm": 0.0, **dict.fromkeys(THIRDS, 0.0)}
        batch, norms = Batch(rows), []
        self._noise = [[0.0, 0.0] for _ in THIRDS]
        values_BT = self._values(batch)
        turns = locate_turns(batch.keys, batch.masks, [row.rewards for row in rows], batch.unpadded(values_BT))
        advantages_BT, returns_BT = self._advantages(batch, turns, values_BT)
        self._third_BT = torch.full_like(batch.mask_BT, -1)
        for turn in turns:
            self._third_BT[turn.row, turn.start : turn.end] = min(2, turn.number * len(THIRDS) // self._eval_turns)
        dropped = [row.rewards["truncated"] == "drop" for row in rows]
        for part in self._mini_batches(batch, dropped, step):
            if self._critic is not None:
                self._step_critic(batch, part, values_BT, returns_BT, turns)
            if not all(dropped[row] for row in part):
                norms.append(self._step_policy(batch, part, advantages_BT, dropped))
        noise = {name: total / max(1.0, count) for name, (total, count) in zip(THIRDS, self._noise, strict=True)}
        signal, turns_without = shares_of_signal(rows)
        grad_norm = sum(norms) / max(1, len(norms))
        return {"signal": signal, "uniform_turns": turns_without, "grad_norm": grad_norm, **noise}

    def _values(self, batch: Batch) -> Tensor:
        """Return the critic's value before each token, float `(B, T)`; 0 without a critic."""
        values_BT = torch.zeros_like(batch.mask_BT)
        if self._critic is not None:
            with torch.no_grad():
                for rows, length in batch.parts(range(len(batch.rows))):
                    values_BT[rows, :length] = batch.before_tokens(self._critic, rows, length)[..., 0]
        return values_BT

    def _advantages(self, batch: Batch, turns: Sequence[TurnSpan], values_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return advantages and returns, float `(B, T)`, by the function that verl's trainer calls."""
        algorithm, mask_BT = self._algorithm, batch.mask_BT
        rewards_BT = rewards_on_last_tokens(turns, mask_BT, algorithm.gamma)
        data = DataProto.from_dict(
            {"response_mask": mask_BT, "token_level_rewards": rewards_BT, "values": values_BT},
            non_tensors={"uid": np.array([key.split("_")[0] for key in batch.keys], dtype=object)},
        )
        values = batch.unpadded(values_BT) if self._critic is not None else None
        token = BATCH_TURNS.set(BatchTurns(turns, self._shaping, values, self._baselines))
        try:
            data = compute_advantage_for_multi_trajectories(
                data,
                batch.keys,
                algorithm.adv_estimator,
                algorithm.gamma,
                algorithm.lam,
                norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
                config=algorithm,
            )
        finally:
            BATCH_TURNS.reset(token)
        return data.batch["advantages"].float(), data.batch["returns"].float()

    def _mini_batches(self, batch: Batch, dropped: Sequence[bool], step: int) -> list[list[int]]:
        """Return the rows of each optimizer step, whole groups as in a training run."""
        count = max(1, round(len(batch.rows) / self._mini_batch))
        rows = [BatchRow(*row) for row in zip(batch.keys, batch.lengths, dropped, strict=True)]
        rows += [BatchRow("pad_0_0", 0, True)] * (-len(rows) % count)
        each = len(rows) // count
        order = order_batch(rows, each, 1, self._seed, step)
        parts = [[row for row in order[at * each :][:each] if row < len(batch.rows)] for at in range(count)]
        return parts * int(self._actor.ppo_epochs)

    def _step_policy(self, batch: Batch, rows: list[int], advantages_BT: Tensor, dropped: Sequence[bool]) -> float:
        """Take one optimizer step, and return the norm of the gradient. Rows without a gradient are left out."""
        actor, masks = self._actor, batch.masks
        columns = TurnBatch((), (), [dropped[row] for row in rows], ()).masks_without_dropped(
            {name: [masks[row].clone() for row in rows] for name in ("response_mask", "loss_mask")}
        )
        tokens = int(sum(mask.sum() for mask in columns["loss_mask"]))
        actor.global_batch_info.update(
            dp_size=1, batch_num_tokens=tokens, global_batch_size=len(rows), loss_scale_factor=actor.loss_scale_factor
        )
        every = actor.use_kl_loss or actor.entropy_coeff
        kept = [row for row in rows if not dropped[row] and (every or advantages_BT[row].any())]
        for part, length in batch.parts(kept):
            self._loss(batch, part, length, advantages_BT).backward()
        return minimize(self._policy, self._optimizers["policy"], actor.grad_clip)

    def _loss(self, batch: Batch, rows: list[int], length: int, advantages_BT: Tensor) -> Tensor:
        """Return the loss of some rows as `verl.workers.utils.losses.ppo_loss` does."""
        actor, mask_BT = self._actor, batch.mask_BT[rows, :length]
        log_probs_BT, all_BTV = batch.log_probs(self._policy, rows, length)
        self._observe(rows, length, advantages_BT, log_probs_BT, all_BTV)
        loss: Tensor
        loss, _ = get_policy_loss_fn(actor.policy_loss.get("loss_mode", "vanilla"))(
            old_log_prob=batch.old_BT[rows, :length],
            log_prob=log_probs_BT,
            advantages=advantages_BT[rows, :length],
            response_mask=mask_BT.bool(),
            loss_agg_mode=actor.loss_agg_mode,
            config=actor,
        )
        if actor.entropy_coeff:
            entropy_BT = -(all_BTV.exp() * all_BTV).sum(-1)
            loss = loss - actor.entropy_coeff * agg_loss(
                entropy_BT, mask_BT, actor.loss_agg_mode, **actor.global_batch_info
            )
        if self._reference is not None:
            with torch.no_grad():
                reference_BT, _ = batch.log_probs(self._reference, rows, length)
            kl_BT = kl_penalty(log_probs_BT, reference_BT, actor.kl_loss_type)
            loss = loss + actor.kl_loss_coef * agg_loss(kl_BT, mask_BT, actor.loss_agg_mode, **actor.global_batch_info)
        return loss

    @torch.no_grad()
    def _observe(
        self, rows: list[int], length: int, advantages_BT: Tensor, log_probs_BT: Tensor, all_BTV: Tensor
    ) -> None:
        """Add the squared norms of the gradients of the tokens' logits, A^2 |onehot - p|^2, to those of their turns."""
        probs_BTV = all_BTV.exp()
        norms_BT = 1 - 2 * log_probs_BT.exp() + (probs_BTV * probs_BTV).sum(-1)
        squares_BT = advantages_BT[rows, :length] ** 2 * norms_BT
        for third, sums in enumerate(self._noise):
            inside_BT = (self._third_BT[rows, :length] == third) & (advantages_BT[rows, :length] != 0)
            sums[0] += float(squares_BT[inside_BT].sum())
            sums[1] += int(inside_BT.sum())

    def _step_critic(
        self, batch: Batch, rows: list[int], values_BT: Tensor, returns_BT: Tensor, turns: Sequence[TurnSpan]
    ) -> None:
        assert self._critic is not None  # the caller checks it
        mask_BT = batch.mask_BT
        if self._algorithm.adv_estimator in TURN_CRITICS:
            mask_BT = torch.zeros_like(mask_BT)
            for turn in turns:
                mask_BT[turn.row, turn.start] = 1
        total = int(mask_BT[rows].sum())
        for part, length in batch.parts(rows):
            predicted_BT = batch.before_tokens(self._critic, part, length)[..., 0]
            targets = [one[part, :length] for one in (returns_BT, values_BT, mask_BT.bool())]
            loss, _ = compute_value_loss(predicted_BT, *targets, self._value_clip, "token-mean", batch_num_tokens=total)
            loss.backward()
        minimize(self._critic, self._optimizers["critic"], 1.0)


def shares_of_signal(rows: Sequence[SegmentRow]) -> tuple[float, float]:
    """Return the share of groups whose episodes differ in return, and the share of the turns in the other groups."""
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        group, sample, _ = row.key.split("_")
        rewards[group][sample] += row.rewards["rewards"]
    differ = {group: not is_uniform(map(sum_rewards, of_group.values())) for group, of_group in rewards.items()}
    turns = {group: sum(map(len, of_group.values())) for group, of_group in rewards.items()}
    without = sum(count for group, count in turns.items() if not differ[group])
    return sum(differ.values()) / max(1, len(differ)), without / max(1, sum(turns.values()))


def minimize(model: PreTrainedModel, optimizer: torch.optim.Optimizer, clip: float) -> float:
    """Take an optimizer step along the gradients, clear them, and return their norm before clipping."""
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
    optimizer.step()
    optimizer.zero_grad()
    return norm
