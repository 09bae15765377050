"""Loss of direct preference optimization (DPO) over whole episodes.

arXiv 2305.18290, equation 7: for a better episode w and a worse one l of the same prompt,
`-log sigmoid(β · (log π(w)/π_ref(w) - log π(l)/π_ref(l)))`. log π sums over the tokens that the model wrote in every
turn, without prompt and observations. Optionally the mean negative log-probability of a token of w is added
(arXiv 2404.19733, equation 2).

Shape suffixes: B pairs, 2B rows in the order better, worse, better, worse, ...
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def reply_log_probs(log_probs: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the log-probs of all replies of each row.

    Args:
        log_probs: jagged `(2B, T)` of any type; entry t is the log-probability of token t + 1. The last entry of a row
            belongs to no token of the row and is ignored.
        loss_mask: jagged `(2B, T)`, 1 on the tokens that the model wrote, 0 on the first token of each row.

    Returns:
        Sums in nats and numbers of tokens, float32 or wider, `(2B,)` each. In bfloat16, with its two or three digits,
        a sum over an episode would lose whole nats.
    """
    exact = torch.promote_types(log_probs.dtype, torch.float32)
    written = torch.roll(loss_mask.values(), shifts=-1, dims=0).to(exact)
    offsets = log_probs.offsets()
    written[offsets[1:] - 1] = 0
    rows = torch.repeat_interleave(offsets.diff())
    empty = torch.zeros(len(offsets) - 1, dtype=exact, device=written.device)
    return empty.index_add(0, rows, log_probs.values().to(exact) * written), empty.index_add(0, rows, written)


def dpo_losses(policy_2B: Tensor, reference_2B: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each pair, and its margin: the policy's preference for w less the reference's.

    Args:
        policy_2B: float `(2B,)`, log-probability of the replies of each row, in nats.
        reference_2B: float `(2B,)`, the same under the reference model, without gradient.
        beta: see `PreferenceSettings.beta`.

    Returns:
        Losses and margins in nats, float `(B,)` each.

    Example:
        >>> losses, margins = dpo_losses(torch.tensor([-1.0, -3.0]), torch.tensor([-2.0, -2.0]), beta=0.5)
        >>> [round(value.item(), 4) for value in (losses[0], margins[0])]
        [0.3133, 2.0]
    """
    gained_B2 = (policy_2B - reference_2B).view(-1, 2)
    margins_B = gained_B2[:, 0] - gained_B2[:, 1]
    return -logsigmoid(beta * margins_B), margins_B
