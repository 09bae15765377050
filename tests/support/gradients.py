"""Gradients of an update by verl's estimators and loss, and a reference from the papers' equations.

The batch has groups of different sizes, and episodes that end by the environment, by the turn limit and by the token
budget. The reference is written in loops over plain numbers, without padding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_to_nested

from tests.support.letters import LOST, SHORT, TRUNCATED, WON
from verl_agent.rollout.tokens import Segment

VOCABULARY = 128
CLIP = 0.2


@dataclass(frozen=True)
class Row:
    """One episode with the data of trainer and engine.

    Attributes:
        group: group of the episode.
        segment: tokens of the episode.
        reward: return of the episode.
        logits_TV: float `(prompt + response, vocabulary)`, logits of the policy that is updated.
        old_T: float `(response,)`, log-probs of the policy that sampled.
        values_T: float `(response,)`, values of the critic.
    """

    group: str
    segment: Segment
    reward: float
    logits_TV: Tensor
    old_T: Tensor
    values_T: Tensor


def log_probs(row: Row) -> Tensor:
    """Return float `(prompt + response,)`: the log-prob of the next token at each position, 0 at the last one."""
    ids = torch.tensor(row.segment.prompt_ids + row.segment.response_ids)
    following = torch.log_softmax(row.logits_TV, -1)[:-1].gather(-1, ids[1:, None])[:, 0]
    return torch.cat([following, following.new_zeros(1)])


def batch() -> list[Row]:
    """Return a batch with three episodes of group a, two of group b and one of group c."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    played = [
        ("a", WON, 1.0),
        ("b", LOST, 0.0),
        ("a", LOST, 0.0),
        ("a", TRUNCATED, 0.25),
        ("b", SHORT, 0.5),
        ("c", SHORT, 1),
    ]
    for group, segment, reward in played:
        length = len(segment.prompt_ids) + len(segment.response_ids)
        logits_TV = torch.randn(length, VOCABULARY, generator=generator, dtype=torch.float64, requires_grad=True)
        noise_T, values_T = (
            torch.randn(len(segment.response_ids), generator=generator, dtype=torch.float64) for _ in range(2)
        )
        row = Row(group, segment, float(reward), logits_TV, noise_T, values_T)
        old_T = log_probs(row)[len(segment.prompt_ids) - 1 : -1].detach() + 0.3 * noise_T  # some ratios are clipped
        rows.append(Row(group, segment, float(reward), logits_TV, old_T, values_T))
    return rows


# Through verl


def padded(rows: Sequence[Sequence[float] | Tensor]) -> Tensor:
    return pad_sequence([torch.as_tensor(row, dtype=torch.float64) for row in rows], batch_first=True)


def nested(rows: Sequence[Sequence[float] | Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def estimated(rows: list[Row], estimator: str, config: AlgoConfig) -> DataProto:
    """Return advantages and returns as verl's V1 trainer computes them."""
    rewards = [[0.0] * (len(row.segment.response_ids) - 1) + [row.reward] for row in rows]
    data = DataProto.from_dict(
        {
            "response_mask": padded([row.segment.response_mask for row in rows]).long(),
            "token_level_rewards": padded(rewards),
            "values": padded([row.values_T for row in rows]),
        },
        non_tensors={"uid": np.array([row.group for row in rows], dtype=object)},
    )
    return compute_advantage_for_multi_trajectories(
        data,
        [f"{row.group}_{index}_0" for index, row in enumerate(rows)],
        estimator,
        config.gamma,
        config.lam,
        norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
        config=config,
    )


def fields(rows: list[Row], **columns: Tensor) -> TensorDict:
    mask = nested([row.segment.response_mask for row in rows])
    data = {
        "prompts": nested([row.segment.prompt_ids for row in rows]),
        "responses": nested([row.segment.response_ids for row in rows]),
        "response_mask": mask,
        **{name: response_to_nested(column, mask) for name, column in columns.items()},
    }
    batch = TensorDict(data, batch_size=len(rows))
    tokens = sum(sum(row.segment.response_mask) for row in rows)
    for name, value in (("dp_size", 1), ("batch_num_tokens", tokens), ("global_batch_size", len(rows))):
        tu.assign_non_tensor_data(batch, name, value)
    return batch


def verl_gradients(rows: list[Row], estimator: str, config: AlgoConfig, **actor: object) -> list[Tensor]:
    """Return the gradients of the logits of each row, by verl's estimator and its loss of the actor."""
    return actor_gradients(rows, estimated(rows, estimator, config).batch["advantages"], **actor)


def actor_gradients(
    rows: list[Row], advantages_BT: Tensor, references: list[Tensor] | None = None, **actor: object
) -> list[Tensor]:
    """Return the gradients of the logits of each row for given advantages."""
    columns = {"ref_log_prob": padded(references)} if references else {}
    data = fields(rows, old_log_probs=padded([row.old_T for row in rows]), advantages=advantages_BT, **columns)
    settings = ActorConfig(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, clip_ratio=CLIP, optim=None, **actor)
    loss, _ = ppo_loss(settings, {"log_probs": nested([log_probs(row) for row in rows])}, data)
    return list(torch.autograd.grad(loss, [row.logits_TV for row in rows]))


# By hand


def written_positions(row: Row) -> list[int]:
    """Return the positions of the response that the model wrote."""
    return [position for position, mask in enumerate(row.segment.response_mask) if mask]


def by_hand(rows: list[Row], estimator: str, config: AlgoConfig) -> list[list[float]]:
    """Return the advantage of each written token of each row."""
    groups = {row.group: [other.reward for other in rows if other.group == row.group] for row in rows}
    if estimator == "grpo":  # arXiv 2402.03300, section 4.1.2; without the division Dr. GRPO, arXiv 2503.20783
        scalars = []
        for row in rows:
            rewards = groups[row.group]
            mean = fmean(rewards) if len(rewards) > 1 else 0.0
            scale = stdev(rewards) + 1e-6 if len(rewards) > 1 and config.norm_adv_by_std_in_grpo else 1.0
            scalars.append((row.reward - mean) / scale)
        return [[scalar] * len(written_positions(row)) for scalar, row in zip(scalars, rows, strict=True)]
    if estimator == "rloo":  # arXiv 2402.14740: the baseline is the mean of the other episodes
        scalars = []
        for row in rows:
            rewards = groups[row.group]
            others = (sum(rewards) - row.reward) / (len(rewards) - 1) if len(rewards) > 1 else 0.0
            scalars.append(row.reward - others)
        return [[scalar] * len(written_positions(row)) for scalar, row in zip(scalars, rows, strict=True)]
    if estimator == "gae":  # arXiv 1506.02438, equation 16, over written tokens alone
        plain = [gae(row, config)[0] for row in rows]
    else:  # REINFORCE++, arXiv 2501.03262: discounted returns, normalised over the batch
        plain = [
            [config.gamma**left * row.reward for left in reversed(range(len(written_positions(row))))] for row in rows
        ]
    every = [value for values in plain for value in values]
    mean, scale = fmean(every), math.sqrt(stdev(every) ** 2 + 1e-8)
    return [[(value - mean) / scale for value in values] for values in plain]


def gae(row: Row, config: AlgoConfig) -> tuple[list[float], list[float]]:
    """Return advantages without normalisation, and returns, of the written tokens."""
    values = [row.values_T[position].item() for position in written_positions(row)]
    rewards = [0.0] * (len(values) - 1) + [row.reward]
    advantages, following = [0.0] * len(values), 0.0
    for position in reversed(range(len(values))):
        after = values[position + 1] if position + 1 < len(values) else 0.0
        following = rewards[position] + config.gamma * after - values[position] + config.gamma * config.lam * following
        advantages[position] = following
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def hand_gradients(
    rows: list[Row],
    advantages: list[list[float]],
    aggregate: str,
    scale: float = 1.0,
    high: float = CLIP,
    references: list[Tensor] | None = None,
    kl: float = 0.0,
) -> list[Tensor]:
    """Return the gradients of PPO's clipped surrogate (arXiv 1707.06347, equation 7), token by token."""
    losses = []
    for number, (row, along) in enumerate(zip(rows, advantages, strict=True)):
        begin = len(row.segment.prompt_ids)
        terms = [row.logits_TV.sum() * 0]
        for position, advantage in zip(written_positions(row), along, strict=True):
            token = row.segment.response_ids[position]
            log_prob = torch.log_softmax(row.logits_TV[begin + position - 1], -1)[token]
            ratio = (log_prob - row.old_T[position]).exp()
            terms.append(-torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + high) * advantage))
            if references:
                above = references[number][position] - log_prob
                terms.append(kl * (above.exp() - above - 1))
        losses.append(torch.stack(terms).sum())
    tokens = sum(len(written_positions(row)) for row in rows)
    total = torch.stack(losses).sum() / (tokens if aggregate == "token-mean" else len(rows) * scale)
    return list(torch.autograd.grad(total, [row.logits_TV for row in rows]))


def predicting_positions(row: Row) -> list[int]:
    """Return the positions of prompt and response whose logits predict a token that the model wrote."""
    return [len(row.segment.prompt_ids) + position - 1 for position in written_positions(row)]
