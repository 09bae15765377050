"""Output layer that computes log-probs and entropies of chosen tokens in float32, without all logits at once.

verl takes log-probs from the logits of all tokens (workers/engine/fsdp/transformer_impl.py, `prepare_model_outputs`).
On a CPU these are bfloat16, with steps of 0.06 between 8 and 16, and verl's loop over single tokens takes most of a
pass. Here the logits exist for some hundred tokens at a time, and in float32.

Shape suffixes: N chosen tokens, T tokens of all rows of a micro-batch, H hidden units, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional

LOGITS = 1 << 23
"""Largest number of logits at a time: 32 MiB in float32, of which the backward pass has three copies."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Tokens whose log-probs are wanted.

    Attributes:
        places_N: index of the token in front of each, among the tokens of all rows of hidden states, int64.
        labels_N: the tokens, int64.
        temperature_N: float32, divisor of their logits.
    """

    places_N: Tensor
    labels_N: Tensor
    temperature_N: Tensor


class LogProbHead(nn.Linear):
    """Linear output layer of a language model that returns float32 logits, or log-probs and entropies of `targets`.

    It takes the place of the model's own layer and shares its parameters.

    Attributes:
        targets: tokens of the next pass; None for the logits of all tokens.
    """

    targets: Targets | None = None

    @classmethod
    def take_place(cls, model: Any) -> "LogProbHead | None":
        """Replace the output layer of a model of transformers; return None if it has another kind of layer."""
        old = model.get_output_embeddings()
        if type(old) is not nn.Linear:
            return None
        old.__class__ = cls  # keeps parameters, ties and names of the state dict
        head: LogProbHead = old
        return head

    def forward(self, hidden: Tensor) -> Tensor:
        """Return float32 logits `(B, T, V)`; with `targets`, log-probs and entropies `(N, 2)` in nats."""
        with torch.autocast(hidden.device.type, enabled=False):
            if self.targets is None:
                return _logits(hidden, self.weight, self.bias)
            chosen, targets = hidden.flatten(0, 1)[self.targets.places_N], self.targets
            parts = (chosen, self.weight, self.bias, targets.labels_N, targets.temperature_N)
            log_probs_N, entropies_N = TokenLogProbs.apply(*parts)
            return torch.stack([log_probs_N, entropies_N], -1)


class TokenLogProbs(torch.autograd.Function):
    """Log-probs and entropies of tokens, whose logits are computed again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, labels_N: Tensor, temperature_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies in nats, float32 `(N,)` each."""
        count = len(labels_N)
        log_probs_N, totals_N, entropies_N = (torch.empty(count, device=hidden_NH.device) for _ in range(3))
        for part in _parts(count, len(weight_VH)):
            logits = _logits(hidden_NH[part], weight_VH, bias_V).div_(temperature_N[part, None])
            totals_N[part] = logits.logsumexp(-1)
            log_probs_N[part] = logits.gather(-1, labels_N[part, None])[:, 0] - totals_N[part]
            logits -= totals_N[part, None]
            entropies_N[part] = -(logits.exp() * logits).sum(-1)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, labels_N, temperature_N, totals_N, entropies_N)
        return log_probs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states, weight and bias; that of entropies costs nothing where it is 0."""
        hidden_NH, weight_VH, bias_V, labels_N, temperature_N, totals_N, entropies_N = ctx.saved_tensors
        of_log_probs_N, of_entropies_N = gradients
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        has_entropy = bool(of_entropies_N.any())
        hidden_gradient = torch.empty_like(hidden_NH) if needs_hidden else None
        weight_gradient = torch.zeros_like(weight_VH, dtype=torch.float32) if needs_weight else None
        bias_gradient = torch.zeros_like(bias_V, dtype=torch.float32) if needs_bias else None
        for part in _parts(len(labels_N), len(weight_VH)):
            logs = (
                _logits(hidden_NH[part], weight_VH, bias_V).div_(temperature_N[part, None]).sub_(totals_N[part, None])
            )
            inner = of_log_probs_N[part, None]
            if has_entropy:  # of the entropy: -p (log p + H)
                inner = inner + of_entropies_N[part, None] * (logs + entropies_N[part, None])
            by_logit = logs.exp_().mul_(inner).neg_()
            by_logit.scatter_add_(-1, labels_N[part, None], of_log_probs_N[part, None])
            by_logit = by_logit.div_(temperature_N[part, None]).to(hidden_NH.dtype)
            if hidden_gradient is not None:
                hidden_gradient[part] = by_logit @ weight_VH.to(by_logit.dtype)
            if weight_gradient is not None:
                weight_gradient.addmm_(by_logit.T.float(), hidden_NH[part].float())
            if bias_gradient is not None:
                bias_gradient += by_logit.sum(0)
        return (
            hidden_gradient,
            weight_gradient if weight_gradient is None else weight_gradient.to(weight_VH.dtype),
            bias_gradient if bias_gradient is None else bias_gradient.to(bias_V.dtype),
            None,
            None,
        )


def returns_output_of(module: Any, head: LogProbHead) -> bool:
    """Return False for a model that changes its logits after the output layer, for example by a soft cap or a scale.

    The output layer returns large numbers meanwhile, because a soft cap leaves small ones as they are.
    """
    ids = torch.arange(4)[None]
    given = torch.linspace(-1e4, 1e4, 4 * len(head.weight)).view(1, 4, -1)
    hook = head.register_forward_hook(lambda *_: given)
    with torch.no_grad():
        returned = module(input_ids=ids, use_cache=False).logits
        hook.remove()
        logits = module(input_ids=ids, use_cache=False).logits.float()
        head.targets = Targets(ids[0], ids[0], torch.ones(4))
        measured = module(input_ids=ids, use_cache=False).logits
    head.targets = None
    expected = logits[0].log_softmax(-1).gather(-1, ids[0, :, None])
    same = returned.shape == given.shape and torch.equal(returned.float(), given)
    return bool(same and measured.shape == (4, 2) and torch.allclose(measured[:, :1], expected, atol=1e-3))


def predicting(micro_batch: TensorDict) -> Tensor:
    """Return bool `(tokens,)` over all rows one after another: True where the next token of the row is in the loss."""
    offsets = micro_batch["input_ids"].offsets()
    wanted = torch.zeros(int(offsets[-1]), dtype=torch.bool)
    mask = micro_batch.get("response_mask", None)
    if mask is not None:  # of the response, the last tokens of a row
        shift = offsets[1:] - mask.offsets()[1:]
        wanted[torch.arange(len(mask.values())) + shift.repeat_interleave(mask.offsets().diff())] = mask.values() != 0
    else:
        wanted[:] = micro_batch["loss_mask"].values() != 0
    wanted[offsets[:-1]] = False  # nothing predicts the first token of a row
    return wanted.roll(-1)


def targets(micro_batch: TensorDict, output_args: dict[str, Any], places_T: Tensor) -> tuple[Targets, Tensor]:
    """Return the different tokens of a micro-batch that are in the loss, and for each such token of a row its index.

    Args:
        places_T: index of each token of all rows among the tokens of the pass, int64.
    """
    ids = micro_batch["input_ids"]
    chosen = predicting(micro_batch).nonzero()[:, 0]
    rows = torch.arange(len(ids)).repeat_interleave(ids.offsets().diff())[chosen]
    temperatures = output_args["temperature"].clamp(min=1e-8)
    heats, heat = torch.unique(temperatures, return_inverse=True)
    wanted = torch.stack([places_T[chosen], ids.values()[chosen + 1], heat[rows]])
    unique, back = torch.unique(wanted, dim=1, return_inverse=True)
    return Targets(unique[0], unique[1], heats[unique[2]]), back


def padded_places(micro_batch: TensorDict) -> Tensor:
    """Return the index of each token of all rows among the tokens of padded rows, int64 `(T,)`."""
    offsets = micro_batch["input_ids"].offsets()
    shift = torch.arange(len(offsets) - 1) * offsets.diff().max() - offsets[:-1]
    return torch.arange(int(offsets[-1])) + shift.repeat_interleave(offsets.diff())


def _logits(hidden: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
    return functional.linear(hidden.float(), weight_VH.float(), None if bias_V is None else bias_V.float())


def _parts(count: int, vocabulary: int) -> list[slice]:
    size = max(1, LOGITS // vocabulary)
    return [slice(start, start + size) for start in range(0, count, size)]
