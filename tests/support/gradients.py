"""Gradients of an update by verl's estimators and loss, and the same written down from the papers.

Groups of different sizes (an episode was left out), episodes that end with an observation, by a cap on turns and by a
cap on tokens, in one batch. The reference is written in loops over plain numbers and knows turns, not padding.
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

from tests.support.letters import CUT, LOST, SHORT, WON
from verl_agent.rollout.tokens import Segment

VOCABULARY = 128
CLIP = 0.2


@dataclass(frozen=True)
class Row:
    """One episode with what trainer and engine know of it.

    Attributes:
        group: the task that it is compared within.
        segment: its tokens.
        reward: its return.
        logits_TV: float `(prompt + response, vocabulary)`, of the policy that is updated.
        old_T: float `(response,)`, log-probs of the policy that sampled.
        values_T: float `(response,)`, the critic's.
    """

    group: str
    segment: Segment
    reward: float
    logits_TV: Tensor
    old_T: Tensor
    values_T: Tensor


def log_probs(row: Row) -> Tensor:
    """Float `(prompt + response,)`: at each place the log-prob of the token that follows, 0 at the last one."""
    ids = torch.tensor(row.segment.prompt_ids + row.segment.response_ids)
    following = torch.log_softmax(row.logits_TV, -1)[:-1].gather(-1, ids[1:, None])[:, 0]
    return torch.cat([following, following.new_zeros(1)])


def batch() -> list[Row]:
    """Group a lost one of its four episodes, group b one of its three, group c all but one."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    played = [("a", WON, 1.0), ("b", LOST, 0.0), ("a", LOST, 0.0), ("a", CUT, 0.25), ("b", SHORT, 0.5), ("c", SHORT, 1)]
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
    """Advantages and returns as verl's V1 trainer gets them."""
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
        [f"{row.group}_{place}_0" for place, row in enumerate(rows)],
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
    """Gradients with respect to the logits of each row, by verl's estimator and its loss of the actor."""
    return actor_gradients(rows, estimated(rows, estimator, config).batch["advantages"], **actor)


def actor_gradients(
    rows: list[Row], advantages_BT: Tensor, references: list[Tensor] | None = None, **actor: object
) -> list[Tensor]:
    """The same from advantages; with the log-probs of a reference model where the loss compares with one."""
    columns = {"ref_log_prob": padded(references)} if references else {}
    data = fields(rows, old_log_probs=padded([row.old_T for row in rows]), advantages=advantages_BT, **columns)
    settings = ActorConfig(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, clip_ratio=CLIP, optim=None, **actor)
    loss, _ = ppo_loss(settings, {"log_probs": nested([log_probs(row) for row in rows])}, data)
    return list(torch.autograd.grad(loss, [row.logits_TV for row in rows]))


# By hand


def written(row: Row) -> list[int]:
    """Places of the response that the model wrote."""
    return [place for place, mask in enumerate(row.segment.response_mask) if mask]


def by_hand(rows: list[Row], estimator: str, config: AlgoConfig) -> list[list[float]]:
    """Advantage of each written token of each row."""
    groups = {row.group: [other.reward for other in rows if other.group == row.group] for row in rows}
    if estimator == "grpo":  # arXiv 2402.03300, section 4.1.2; without the division Dr. GRPO, arXiv 2503.20783
        scalars = []
        for row in rows:
            rewards = groups[row.group]
            mean = fmean(rewards) if len(rewards) > 1 else 0.0
            scale = stdev(rewards) + 1e-6 if len(rewards) > 1 and config.norm_adv_by_std_in_grpo else 1.0
            scalars.append((row.reward - mean) / scale)
        return [[scalar] * len(written(row)) for scalar, row in zip(scalars, rows, strict=True)]
    if estimator == "rloo":  # arXiv 2402.14740: the mean of the others is the baseline
        scalars = []
        for row in rows:
            rewards = groups[row.group]
            others = (sum(rewards) - row.reward) / (len(rewards) - 1) if len(rewards) > 1 else 0.0
            scalars.append(row.reward - others)
        return [[scalar] * len(written(row)) for scalar, row in zip(scalars, rows, strict=True)]
    if estimator == "gae":  # arXiv 1506.02438, equation 16, over written tokens alone
        plain = [gae(row, config)[0] for row in rows]
    else:  # REINFORCE++, arXiv 2501.03262: discounted returns, normalised over the batch
        plain = [[config.gamma**left * row.reward for left in reversed(range(len(written(row))))] for row in rows]
    every = [value for values in plain for value in values]
    mean, scale = fmean(every), math.sqrt(stdev(every) ** 2 + 1e-8)
    return [[(value - mean) / scale for value in values] for values in plain]


def gae(row: Row, config: AlgoConfig) -> tuple[list[float], list[float]]:
    """Advantages before they are normalised, and returns, of the written tokens."""
    values = [row.values_T[place].item() for place in written(row)]
    rewards = [0.0] * (len(values) - 1) + [row.reward]
    advantages, following = [0.0] * len(values), 0.0
    for place in reversed(range(len(values))):
        after = values[place + 1] if place + 1 < len(values) else 0.0
        following = rewards[place] + config.gamma * after - values[place] + config.gamma * config.lam * following
        advantages[place] = following
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
    """The clipped surrogate of PPO (arXiv 1707.06347, equation 7), token by token.

    With an upper clip of its own (DAPO, arXiv 2503.14476, equation 8), and `kl` times the estimate k3 of the divergence
    from the reference (arXiv 2402.03300, equation 4).
    """
    losses = []
    for number, (row, along) in enumerate(zip(rows, advantages, strict=True)):
        begin = len(row.segment.prompt_ids)
        terms = [row.logits_TV.sum() * 0]
        for place, advantage in zip(written(row), along, strict=True):
            token = row.segment.response_ids[place]
            log_prob = torch.log_softmax(row.logits_TV[begin + place - 1], -1)[token]
            ratio = (log_prob - row.old_T[place]).exp()
            terms.append(-torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + high) * advantage))
            if references:
                above = references[number][place] - log_prob
                terms.append(kl * (above.exp() - above - 1))
        losses.append(torch.stack(terms).sum())
    tokens = sum(len(written(row)) for row in rows)
    total = torch.stack(losses).sum() / (tokens if aggregate == "token-mean" else len(rows) * scale)
    return list(torch.autograd.grad(total, [row.logits_TV for row in rows]))


def predicting_written(row: Row) -> list[int]:
    """Places of prompt and response whose logits predict a token that the model wrote."""
    return [len(row.segment.prompt_ids) + place - 1 for place in written(row)]
