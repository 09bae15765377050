"""The loss of DPO and its gradient equal a plain implementation of the paper by loops."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from verl.utils import tensordict_utils as tu

from verl_agent.training.offline.dpo_trainer import mean_of_sums, preference_loss, reply_log_probs
from verl_agent.training.offline.encoding import Row, collate_pairs

BETA, NLL = 0.3, 0.2
MASKS = ["000110011", "00011", "0001110100", "00010001111"]
"""Of better, worse, better, worse: a prompt, then replies between observations; the second has one reply, the third
ends with observations."""


def tiny(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    return LlamaForCausalLM(config).double()


def rows() -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "input_ids": torch.randint(50, (len(mask),), generator=generator),
            "position_ids": torch.arange(len(mask)),
            "loss_mask": torch.tensor([int(one) for one in mask]),
        }
        for mask in MASKS
    ]


def log_prob_of_replies(model: LlamaForCausalLM, row: Row) -> torch.Tensor:
    """Return the sum over the tokens that the model wrote, by a loop."""
    scores = model(row["input_ids"][None]).logits[0].log_softmax(-1)
    written = [index for index, one in enumerate(row["loss_mask"].tolist()) if one]
    return sum(scores[index - 1, row["input_ids"][index]] for index in written)


def plain_loss(model: LlamaForCausalLM, reference: LlamaForCausalLM) -> tuple[torch.Tensor, list[float]]:
    """Equation 7 of arXiv 2305.18290 with the second term of equation 2 of arXiv 2404.19733."""
    total, margins = torch.tensor(0.0, dtype=torch.float64), []
    for better, worse in zip(rows()[::2], rows()[1::2], strict=True):
        policy = [log_prob_of_replies(model, row) for row in (better, worse)]
        with torch.no_grad():
            base = [log_prob_of_replies(reference, row) for row in (better, worse)]
        margin = (policy[0] - base[0]) - (policy[1] - base[1])
        margins.append(margin.item())
        total = total - torch.log(1 / (1 + torch.exp(-BETA * margin)))
        total = total - NLL * policy[0] / better["loss_mask"].sum()
    return total / 2, margins


def as_verl_gives(model: LlamaForCausalLM, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Log-probs of verl's engine, packed: entry t scores token t + 1 of the batch, the first of the next row too."""
    scores = [model(row[None]).logits[0].log_softmax(-1) for row in batch["input_ids"].unbind()]
    labels = torch.roll(batch["input_ids"].values(), -1)
    return torch.cat(scores).gather(1, labels[:, None])[:, 0]


def jagged(packed: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(packed, batch["input_ids"].offsets())


def our_loss(model: LlamaForCausalLM, reference: LlamaForCausalLM, pairs_a_micro_batch: int = 2):
    """The sum over micro-batches, as the engine forms it, and its metrics."""
    flat = rows()
    with torch.no_grad():
        for row in flat:
            row["reference"] = log_prob_of_replies(reference, row)
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    total, metrics, packed = 0.0, [], []
    for start in range(0, 2, pairs_a_micro_batch):
        batch = collate_pairs(pairs[start : start + pairs_a_micro_batch])
        packed.append(as_verl_gives(model, batch))
        packed[-1].retain_grad()
        data = tu.get_tensordict(batch, {"dp_size": 1, "global_batch_size": 2})
        loss, measured = preference_loss(BETA, NLL, {"log_probs": jagged(packed[-1], batch)}, data)
        total = total + loss
        metrics.append(measured)
    return total, metrics, packed


def gradient(loss: torch.Tensor, model: LlamaForCausalLM) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def test_loss_and_gradient_equal_a_plain_reading():
    model, reference = tiny(1), tiny(2)
    expected, margins = plain_loss(model, reference)
    wanted = gradient(expected, model)
    for pairs_a_micro_batch in (1, 2):
        loss, metrics, _ = our_loss(model, reference, pairs_a_micro_batch)
        assert abs(loss.item() - expected.item()) < 1e-5
        assert torch.allclose(gradient(loss, model), wanted, atol=1e-5)
        assert abs(mean_of_sums([[one["train/margin"] for one in metrics]]) - sum(margins) / 2) < 1e-5
        assert sum(one["train/accuracy"] for one in metrics) == sum(margin > 0 for margin in margins) / 2
    assert wanted.abs().max() > 1e-3


def test_no_gradient_reaches_prompt_observations_and_the_next_row():
    model = tiny(1)
    loss, _, (packed,) = our_loss(model, tiny(2))
    loss.backward()
    written = "".join(mask[1:] + "0" for mask in MASKS)  # entry t scores token t + 1
    moved = packed.grad != 0
    assert "".join(str(int(one)) for one in moved) == written


def test_numbers_of_ranks_and_micro_batches_become_one():
    assert mean_of_sums([0.25, 0.5]) == 0.75
    assert mean_of_sums([[0.25, 0.5], [0.5, 0.75]]) == 1.0


def test_sums_over_long_episodes_are_exact_in_bfloat16():
    """Added up in bfloat16, 3,000 tokens of a quarter of a nat come out hundreds of nats too small."""
    generator = torch.Generator().manual_seed(0)
    values = -torch.rand(3000, generator=generator).to(torch.bfloat16) / 2
    mask = torch.ones(3000, dtype=torch.int64)
    mask[0] = 0
    packed = [torch.nested.as_nested_tensor([tensor, tensor], layout=torch.jagged) for tensor in (values, mask)]
    sums, tokens = reply_log_probs(*packed)
    expected = values[:-1].double().sum()
    assert sums.dtype == torch.float32 and tokens.tolist() == [2999, 2999]
    torch.testing.assert_close(sums.double(), expected.repeat(2), rtol=0, atol=1e-2)
