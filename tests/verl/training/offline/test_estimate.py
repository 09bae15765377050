"""Test the estimated time of supervised training: lengths, padding, validations, and the speed of this machine."""

from typing import Any

import pytest
import torch

from verl_agent.config.plan import OfflinePlan
from verl_agent.training.offline.estimate import computed_tokens, computing_s, row_lengths
from verl_agent.training.preflight.estimates import Shape
from verl_agent.training.preflight.machine import cpu_flops

TINY = Shape(layers=2, hidden=16, heads=2, kv_heads=2, head_dim=8, inner=32, vocabulary=100, tied=True)


def plan(packed: bool = True, batch: int = 4, test_freq: Any = -1, **more: Any) -> OfflinePlan:
    data = {"use_dynamic_bsz": packed, "micro_batch_size_per_gpu": 2, "train_batch_size": batch}
    values = {
        "data": data,
        "model": {"enable_gradient_checkpointing": False},
        "trainer": {"test_freq": test_freq},
        "env": {"name": "guess_number"},
        "agent": {"name": "raw"},
        **more,
    }
    return OfflinePlan.of(values)


class Layers(torch.nn.Module):
    """Decoder with the products of `TINY`, computed as a model computes them."""

    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.attention = torch.nn.ModuleList(linear(16, 16, bias=False) for _ in range(4 * 2))
        self.inner = torch.nn.ModuleList(
            [*(linear(16, 32, bias=False) for _ in range(4)), *(linear(32, 16, bias=False) for _ in range(2))]
        )
        self.head = linear(16, 100, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in range(2):
            q, k, v = (self.attention[4 * layer + n](x).view(len(x), -1, 2, 8).transpose(1, 2) for n in range(3))
            mixed = ((q @ k.transpose(2, 3)) @ v).transpose(1, 2).reshape(x.shape)
            x = self.attention[4 * layer + 3](mixed)
            x = self.inner[4 + layer](self.inner[2 * layer](x) * self.inner[2 * layer + 1](x))
        return self.head(x)


def test_the_operations_of_a_step_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    model, counter = Layers(), FlopCounterMode(display=False)
    rows = torch.randn(4, 10, 16, requires_grad=True)
    with counter:
        model(rows).sum().backward()
    seconds, validating = computing_s(plan(), TINY, ([10] * 4, []), steps=1, rate=1.0)
    assert seconds == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert validating == 0


def test_a_fixed_micro_batch_is_padded_to_its_longest_row():
    padded = computed_tokens([3, 9, 4, 4, 7], plan(packed=False).actor.passes)
    assert [count for count, _ in padded] == [9, 9, 4, 4, 7]
    assert [count for count, _ in computed_tokens([3, 9], plan().actor.passes)] == [3, 9]


def test_time_follows_real_lengths_steps_and_validations():
    def cost(lengths: list[int], validated: list[int], steps: int, **changes: Any) -> tuple[float, float]:
        return computing_s(plan(**changes), TINY, (lengths, validated), steps, 1.0)

    once, _ = cost([10] * 8, [], 2)
    assert cost([10] * 8, [], 6)[0] == pytest.approx(3 * once), "three epochs of two steps"
    assert cost([20] * 8, [], 2)[0] > 2 * once
    _, last = cost([10] * 8, [10] * 8, 6)
    assert last == pytest.approx(once / 3), "one validation at the end, forward only"
    assert cost([10] * 8, [10] * 8, 6, test_freq=2)[1] == pytest.approx(3 * last)
    assert cost([10] * 8, [10] * 8, 6, test_freq="after_each_epoch")[1] == pytest.approx(3 * last)
    assert cost([10] * 8, [10] * 8, 5, test_freq=2)[1] == pytest.approx(3 * last), "and one after the last step"


def test_each_row_of_a_pair_counts_and_the_reference_reads_it_once():
    row = {"input_ids": torch.zeros(10)}
    assert row_lengths([(row, row), (row, row)]) == [10] * 4
    assert row_lengths(None) == []
    pairs, _ = computing_s(plan(batch=2, preference={}), TINY, ([10] * 4, []), 1, 1.0)
    alone, _ = computing_s(plan(batch=4), TINY, ([10] * 4, []), 1, 1.0)
    assert pairs == pytest.approx(alone * 4 / 3)


def test_the_speed_is_that_of_products_on_this_machine():
    assert 1e9 < cpu_flops(0.1) < 1e14
