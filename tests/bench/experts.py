"""Experts that another precision chooses, and the effect of replaying the rollout's: `python -m tests.bench.experts`.

A tiny random Qwen3-MoE samples in bfloat16 and is trained in float32, both with transformers on a CPU; no engine is
involved. Replay gives the update the experts that the rollout chose. The error of a gradient is its distance from that
of the policy that sampled, whose weights are rounded to bfloat16, relative to its length.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

ROWS, TOKENS, VOCABULARY = 8, 256, 512


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences between rollout and update.

    Attributes:
        other: share of tokens with other experts in at least one layer.
        log_probs: mean absolute difference of log-probs, without and with replay.
        gradients: relative error of the gradient, without and with replay.
    """

    other: float
    log_probs: tuple[float, float]
    gradients: tuple[float, float]


@contextmanager
def routed(chosen: list[Tensor], given: Sequence[Tensor] | None = None) -> Iterator[None]:
    """Record the experts of each layer in `chosen`; use those of `given` instead of the best."""
    left, upstream = list(given or ()), Qwen3MoeTopKRouter.forward

    def forward(self: Qwen3MoeTopKRouter, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = torch.nn.functional.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
        shares = torch.softmax(logits, dtype=torch.float, dim=-1)
        experts = left.pop(0) if given else shares.topk(self.top_k, dim=-1)[1]
        chosen.append(experts)
        weights = shares.gather(-1, experts)
        return logits, (weights / weights.sum(-1, keepdim=True)).to(logits.dtype), experts

    Qwen3MoeTopKRouter.forward = forward
    try:
        yield
    finally:
        Qwen3MoeTopKRouter.forward = upstream


def log_probs(model: Qwen3MoeForCausalLM, ids: Tensor, given: Sequence[Tensor] | None = None) -> tuple[Tensor, list]:
    """Return log-probs, shape (rows, tokens - 1), and the experts of each layer."""
    chosen: list[Tensor] = []
    with routed(chosen, given):
        logits = model(input_ids=ids, use_cache=False).logits.float()
    return logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0], chosen


def gradient(model: Qwen3MoeForCausalLM, ids: Tensor, advantages: Tensor, given: Sequence[Tensor] | None) -> Tensor:
    """Return the gradient of a policy loss as one vector."""
    model.zero_grad()
    (-(log_probs(model, ids, given)[0] * advantages).mean()).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def measure(layers: int) -> Difference:
    """Return the differences for a model with this number of layers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers}
    experts = {"num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True, "initializer_range": 0.1}
    update = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=VOCABULARY, **sizes, **heads, **experts))
    rollout = copy.deepcopy(update).bfloat16()
    ids, advantages = torch.randint(0, VOCABULARY, (ROWS, TOKENS)), torch.randn(ROWS, TOKENS - 1)
    with torch.no_grad():
        sampled, theirs = log_probs(rollout, ids)
        plain, ours = log_probs(update, ids)
        replayed, _ = log_probs(update, ids, theirs)
    pairs = zip(theirs, ours, strict=True)
    other = torch.stack([(one.sort()[0] != two.sort()[0]).any(-1) for one, two in pairs]).any(0)
    true = gradient(rollout.float(), ids, advantages, theirs)
    errors = [float((gradient(update, ids, advantages, one) - true).norm() / true.norm()) for one in (None, theirs)]
    gaps = [float((sampled - one).abs().mean()) for one in (plain, replayed)]
    return Difference(float(other.float().mean()), (gaps[0], gaps[1]), (errors[0], errors[1]))


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)  # the model is small
    table = Table("layers", "tokens with other experts", "log-probs", "with replay", "gradient", "with replay")
    for layers in (2, 8):
        one = measure(layers)
        gaps, errors = (f"{gap:.4f}" for gap in one.log_probs), (f"{error:.3f}" for error in one.gradients)
        table.add_row(str(layers), f"{one.other:.1%}", *gaps, *errors)
    Console().print(table)


if __name__ == "__main__":
    main()
