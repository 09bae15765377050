"""One training run in one process: play, advantages by verl, ordered mini-batches, losses by verl."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import compute_value_loss, get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.workers.config import ActorConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

import verl_agent.training.estimators  # noqa: F401 - registers them
from tests.bench.learning.analysis import Point
from tests.bench.learning.direct.engine_policy import EnginePolicy, Llama
from tests.bench.learning.direct.flight import Asynchrony, Flight
from tests.bench.learning.direct.game import HIGHER, LENGTH, LOWER, PROMPT, TOKENS, Batch, number_token, play, tasks
from tests.bench.learning.direct.model import Transformer
from verl_agent.config.algorithms import GROUPED
from verl_agent.config.reward_shaping import RewardShaping, turn_rewards
from verl_agent.horizon import Horizon
from verl_agent.training.batch_order import BatchRow, order_batch
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, locate_turns

TASKS, SAMPLES, MINI_BATCHES = 16, 8, 4
"""Tasks of a step, episodes of a task, optimizer steps of a step."""
RATE, CRITIC_RATE = 1e-3, 2e-3
EVALUATE_EVERY, EVALUATION_SAMPLES = 10, 4
VALUE_CLIP = 0.5
Policy = TypeVar("Policy", Transformer, Llama)
SIX_TURNS, PLAIN = Horizon([6]), RewardShaping()


def by_group(batch: Batch, seed: int, step: int) -> list[int]:
    """Return the product's order of a batch."""
    trained = (batch.mask_BT.sum(-1) > 0).tolist()
    workload = batch.mask_BT.sum(-1).long().tolist()
    rows = [BatchRow(key, *row) for key, *row in zip(batch.keys, workload, (not each for each in trained), strict=True)]
    return order_batch(rows, len(rows) // MINI_BATCHES, 1, seed, step)


@dataclass(frozen=True)
class Arm:
    """Variant of training. A new arm sets the fields in which it differs.

    Attributes:
        order: order of the rows; optimizer steps take equal parts of it.
        credit: changes rewards and mask of a batch before advantages are computed. Its second argument is the
            critic's value of the state after each row's last observation, float `(B,)`, or None without a critic.
        drops: leave truncated rows out of the loss after advantages are computed, as `credit.truncated=drop` does.
        estimator: `algorithm.adv_estimator`; `gae` trains a critic.
        loss: `actor.policy_loss.loss_mode` of verl.
        rollout: asynchronous rollout in simulated time; None plays the episodes of a step at once.
        horizon: turn limit of each step.
        eval_turns: turn limit of evaluations.
        steps: training steps.
        learning_rate: of the policy.
        gamma: discount per token.
        lam: lambda of `gae`.
        shaping: settings of estimators that use turns.
        actor: further keyword arguments of verl's `ActorConfig`.
        engine: class and dtype of the engine that updates the policy; None for an optimizer of PyTorch. The engine
            has the default `loss` and `actor`, and no `rollout`.
    """

    order: Callable[[Batch, int, int], list[int]] = by_group
    credit: Callable[[Batch, Tensor | None], None] = lambda batch, last_value_B: None
    drops: bool = False
    estimator: str = "grpo"
    loss: str = "vanilla"
    rollout: Asynchrony | None = None
    horizon: Horizon = SIX_TURNS
    eval_turns: int = 6
    steps: int = 100
    learning_rate: float = RATE
    gamma: float = 1.0
    lam: float = 1.0
    shaping: RewardShaping = PLAIN
    actor: dict[str, object] = field(default_factory=dict)
    engine: tuple[type[FSDPEngine], str] | None = None


def log_probs(policy: nn.Module, tokens_BL: Tensor, length: int) -> Tensor:
    """Return the log-prob of each token of the responses, float `(B, T)`."""
    logits_BTV = policy(tokens_BL[:, : PROMPT + length - 1])[:, PROMPT - 1 :]
    return torch.log_softmax(logits_BTV, -1).gather(-1, tokens_BL[:, PROMPT : PROMPT + length, None])[..., 0]


def values(critic: Transformer, tokens_BL: Tensor) -> Tensor:
    """Return the critic's value of the state before each token of the responses and after them, `(B, T + 2)`."""
    return critic(tokens_BL)[:, PROMPT - 1 :, 0]


def leave_out_small_groups(batch: Batch) -> None:
    """Clear the mask of groups with fewer than two rows, which the product's sampler drops."""
    trained = batch.mask_BT.any(-1).tolist()
    sizes = Counter(group for group, kept in zip(batch.groups, trained, strict=True) if kept)
    batch.mask_BT[[sizes[group] < 2 for group in batch.groups]] = 0


def advantages(batch: Batch, arm: Arm, values_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return advantages and returns, float `(B, T)`, by the function that verl's trainer calls.

    Rows without an action in their mask do not count; theirs are 0.
    """
    config = AlgoConfig(adv_estimator=arm.estimator, gamma=arm.gamma, lam=arm.lam)
    rows = batch.mask_BT.any(-1).nonzero()[:, 0].tolist()
    keys, mask_RT = [batch.keys[row] for row in rows], batch.mask_BT[rows]
    data = DataProto.from_dict(
        {"response_mask": mask_RT, "token_level_rewards": batch.rewards_BT[rows], "values": values_BT[rows]},
        non_tensors={"uid": np.array([batch.groups[row] for row in rows], dtype=object)},
    )
    fields = [turn_rewards(batch.episodes[row], arm.shaping).to_fields() for row in rows]
    token = BATCH_TURNS.set(BatchTurns(locate_turns(keys, list(mask_RT), fields), arm.shaping))
    try:
        data = compute_advantage_for_multi_trajectories(data, keys, arm.estimator, arm.gamma, arm.lam, config=config)
    finally:
        BATCH_TURNS.reset(token)
    advantages_BT, returns_BT = torch.zeros_like(batch.mask_BT), torch.zeros_like(batch.mask_BT)
    advantages_BT[rows], returns_BT[rows] = data.batch["advantages"], data.batch["returns"]
    return advantages_BT, returns_BT


class Learner:
    """Policy, critic and optimizers of one run.

    Args:
        arm: variant of training.
        seed: seed of tasks, sampling and order.
        policy: policy after the warm start.
    """

    def __init__(self, arm: Arm, seed: int, policy: Transformer | EnginePolicy) -> None:
        if arm.engine and (arm.loss != Arm.loss or arm.actor or arm.rollout):
            raise ValueError("an arm with an engine takes neither loss, actor nor rollout.")
        torch.manual_seed(seed)
        self.arm, self.seed, self.policy = arm, seed, policy
        self.critic = Transformer(TOKENS, 1, LENGTH) if arm.estimator == "gae" else None
        self._actor = ActorConfig(
            strategy="fsdp",
            rollout_n=SAMPLES,
            use_dynamic_bsz=True,
            optim=None,
            **arm.actor,  # type: ignore[arg-type]
        )
        self._optimizer = torch.optim.AdamW(policy.parameters(), arm.learning_rate, weight_decay=0.0)
        if self.critic:
            self._critic_optimizer = torch.optim.AdamW(self.critic.parameters(), CRITIC_RATE, weight_decay=0.0)
        self._items = tasks()
        self._advantages: list[list[float]] = [[] for _ in range(MINI_BATCHES)]
        self._luck, self._staleness = random.Random(seed), list[float]()
        self._flight = Flight(policy, arm.rollout, TASKS, SAMPLES, seed) if arm.rollout else None

    def run(self) -> list[Point]:
        """Train to the end and return the evaluations."""
        begin, turns = time.monotonic(), 0
        points = [Point(0, 0, 0.0, self.evaluate())]
        for step in range(1, self.arm.steps + 1):
            batch = self._played(step)
            self._staleness.append(batch.staleness)
            turns += sum(len(episode.turns) for episode in batch.episodes)
            self.update(batch, step)
            if self._flight:
                self._flight.end_update()
            if step % EVALUATE_EVERY == 0 or step == self.arm.steps:
                seconds = self._flight.now_s if self._flight else time.monotonic() - begin
                points.append(Point(step, turns, seconds, self.evaluate()))
        return points

    def _played(self, step: int) -> Batch:
        """Return the episodes of a step."""
        items, max_turns = self._luck.sample(self._items, TASKS), self.arm.horizon.turns_at(step)
        if not self._flight or not self.arm.rollout:
            chosen = [item for item in items for _ in range(SAMPLES)]
            return play(self._next_logits, chosen, max_turns, self.seed * 100_000 + step)
        if step == 1:
            ahead = self._luck.sample(self._items, int(self.arm.rollout.warmup * TASKS))
            self._flight.dispatch(step, ahead, max_turns)
        self._flight.dispatch(step, items, max_turns)
        return self._flight.take(step)

    def update(self, batch: Batch, step: int) -> None:
        """Train on one batch."""
        length = batch.mask_BT.shape[1]
        values_BT, last_value_B = torch.zeros_like(batch.mask_BT), None
        if self.critic:
            with torch.no_grad():
                every = values(self.critic, batch.tokens_BL)
            values_BT, last_value_B = every[:, :length], every[torch.arange(len(every)), batch.last_action_B + 2]
        self.arm.credit(batch, last_value_B)
        if self.arm.estimator in GROUPED:
            leave_out_small_groups(batch)
        advantages_BT, returns_BT = advantages(batch, self.arm, values_BT)
        learned_BT = batch.mask_BT.clone()
        if self.arm.drops:
            batch.mask_BT[[episode.truncated for episode in batch.episodes]] = 0
        old_BT, weights_BT = self._corrected(batch)
        order = self.arm.order(batch, self.seed, step)
        size = len(order) // MINI_BATCHES
        for number in range(MINI_BATCHES):
            rows = order[number * size : (number + 1) * size]
            mask_BT = batch.mask_BT[rows]
            if self.critic and learned_BT[rows].any():
                loss, _ = compute_value_loss(
                    values(self.critic, batch.tokens_BL[rows])[:, :length],
                    returns_BT[rows],
                    values_BT[rows],
                    learned_BT[rows],
                    VALUE_CLIP,
                )
                minimize(loss, self.critic, self._critic_optimizer)
            if not mask_BT.any():
                continue
            self._advantages[number].append(float((advantages_BT[rows] * mask_BT).sum() / mask_BT.sum()))
            if isinstance(self.policy, EnginePolicy):
                self.policy.minimize(batch, rows, advantages_BT)
                continue
            loss, _ = get_policy_loss_fn(self.arm.loss)(
                old_log_prob=old_BT[rows],
                log_prob=log_probs(self.policy, batch.tokens_BL[rows], length),
                advantages=advantages_BT[rows],
                response_mask=mask_BT,
                loss_agg_mode=self._actor.loss_agg_mode,
                config=self._actor,
                rollout_is_weights=None if weights_BT is None else weights_BT[rows],
            )
            minimize(loss, self.policy, self._optimizer)

    def _corrected(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return old log-probs and importance weights of the loss, both float `(B, T)`.

        Actions of earlier weights have two ratios, as with `bypass_mode: false` and `rollout_is: token`: the clipped
        one is to the policy before this update, and the weight is that policy's probability over that of sampling.
        """
        if self.arm.rollout is None:
            return batch.old_BT, None
        with torch.no_grad():
            present_BT = log_probs(self.policy, batch.tokens_BL, batch.mask_BT.shape[1]) * batch.mask_BT
        if not self.arm.rollout.corrected:
            return present_BT, None
        weights_BT, _ = compute_rollout_correction_weights(present_BT - batch.old_BT, batch.mask_BT)
        return present_BT, weights_BT

    @property
    def mean_staleness(self) -> float:
        """Mean number of updates since an action was sampled, over all steps."""
        return fmean(self._staleness)

    def mean_advantages(self) -> list[float]:
        """Return the mean advantage of an action in each optimizer step of a training step, over all steps."""
        return [fmean(values) if values else 0.0 for values in self._advantages]

    def evaluate(self) -> float:
        """Return the share of solved samples over all tasks."""
        items = [item for item in self._items for _ in range(EVALUATION_SAMPLES)]
        batch = play(self._next_logits, items, self.arm.eval_turns, seed=12345)
        return sum(episode.success for episode in batch.episodes) / len(items)

    def _next_logits(self, tokens_BL: Tensor) -> Tensor:
        return self.policy(tokens_BL)[:, -1]


def minimize(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Take one optimizer step."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def warm_start(new_policy: Callable[[], Policy], seed: int, steps: int = 150, wild: float = 0.8) -> Policy:
    """Return a policy that imitates guesses within the remaining range, of which some are wild.

    Args:
        new_policy: returns a random policy.
        seed: seed of the weights and of the demonstrations.
        steps: optimizer steps on 64 demonstrations each.
        wild: share of guesses from the whole range.
    """
    torch.manual_seed(seed)
    policy, luck = new_policy(), random.Random(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), 2e-3, weight_decay=0.0)
    items = tasks()

    def logits_of_demonstrations(tokens_BL: Tensor) -> Tensor:
        logits_BV = torch.full((len(tokens_BL), TOKENS), -1e9)
        for row, tokens_L in enumerate(tokens_BL.tolist()):
            low, high = remaining(tokens_L)
            if luck.random() < wild:
                low, high = 1, tokens_L[1] - number_token(1) + 1
            logits_BV[row, number_token(low) : number_token(high) + 1] = 0.0
        return logits_BV

    for step in range(steps):
        batch = play(logits_of_demonstrations, luck.choices(items, k=64), 6, seed * 1000 + step)
        length = batch.mask_BT.shape[1]
        loss = -(log_probs(policy, batch.tokens_BL, length) * batch.mask_BT).sum() / batch.mask_BT.sum()
        minimize(loss, policy, optimizer)
    return policy


def remaining(tokens: list[int]) -> tuple[int, int]:
    """Return the range in which the number must lie after the guesses and answers of one row."""
    low, high = 1, tokens[1] - number_token(1) + 1
    for guess, answer in zip(tokens[PROMPT::2], tokens[PROMPT + 1 :: 2], strict=False):
        number = guess - number_token(1) + 1
        if answer == HIGHER:
            low = max(low, number + 1)
        elif answer == LOWER:
            high = min(high, number - 1)
    return low, high
