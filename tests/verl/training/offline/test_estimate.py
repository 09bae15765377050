"""Test the estimated time of supervised training: lengths, padding, validations, and the speed of this machine."""

import os
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from verl_agent.config.plan import OfflinePlan
from verl_agent.training.offline.estimate import RowLengths, computing_s, measure_rows
from verl_agent.training.offline.run import ranks_at_once
from verl_agent.training.preflight.estimates import Shape
from verl_agent.training.preflight.machine import cpu_flops

TINY = Shape(layers=2, hidden=16, heads=2, kv_heads=2, head_dim=8, inner=32, vocabulary=100, tied=True)


def plan(packed: bool = True, batch: int = 4, test_freq: Any = -1, dtype: str = "fp32", **more: Any) -> OfflinePlan:
    data = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2, "train_batch_size": batch}
    values = {
        "data": data,
        "model": {"enable_gradient_checkpointing": False, "use_remove_padding": packed},
        "engine": {"mixed_precision": {"param_dtype": dtype}},
        "trainer": {"test_freq": test_freq},
        "env": {"name": "guess_number"},
        "agent": {"name": "raw"},
        **more,
    }
    return OfflinePlan.of(values)


def rows(*lengths: int, first: int = 0) -> list[dict[str, torch.Tensor]]:
    """Return rows of a dataset, of which no two begin with the same token unless `first` is above 0."""
    return [
        {
            "input_ids": torch.cat(
                [torch.zeros(min(first, length)), torch.full((max(0, length - first),), number)]
            ).long()
        }
        for number, length in enumerate(lengths, 1)
    ]


def equal(count: int, length: int = 10) -> RowLengths:
    return RowLengths([length] * count, [(length, length)] * count)


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
    inputs = torch.randn(4, 10, 16, requires_grad=True)
    with counter:
        model(inputs).sum().backward()
    seconds, validating = computing_s(plan(), TINY, equal(4), RowLengths(), steps=1, rate=1.0)
    assert seconds == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert validating == 0


def test_a_fixed_micro_batch_without_packing_is_padded_to_its_longest_row():
    padded = measure_rows(rows(3, 9, 4, 4, 7), plan(packed=False, batch=8)).computed
    assert [count for count, _ in padded] == [9, 9, 4, 4, 7]
    assert [count for count, _ in measure_rows(rows(3, 9), plan()).computed] == [3, 9]
    assert measure_rows(None, plan()) == RowLengths()


def test_the_engine_on_a_cpu_computes_shared_beginnings_once_and_no_padding():
    """As many tokens as its own tree of the same batch has."""
    from tensordict import TensorDict

    from verl_agent.platform.micro_batches import split_micro_batches
    from verl_agent.platform.token_tree import TokenTree

    own, run = rows(30, 12, 25, 40, first=10), plan(packed=False)
    ids = [row["input_ids"] for row in own]
    batch = TensorDict(
        {"input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged), "micro_batch_size_per_gpu": 2},
        batch_size=[],
    )
    groups = split_micro_batches(batch, shares=True, keep_all=True)
    expected = [len(TokenTree.of([ids[int(row)] for row in group]).ids_U) for group in groups]
    found = measure_rows(own, run, shared=True)
    assert [count for count, _ in found.computed] == expected and found.tokens == [30, 12, 25, 40]
    assert sum(expected) < sum(found.tokens)
    assert sum(count for count, _ in measure_rows(rows(3, 9, 4, 4), run, shared=True).computed) == 20
    pair = [tuple(rows(30, 25, first=20))] * 4
    assert sum(count for count, _ in measure_rows(pair, run, shared=True).computed) < 4 * (30 + 5) + 1


def test_time_follows_real_lengths_steps_and_validations():
    def cost(train: RowLengths, validation: RowLengths, steps: int, **changes: Any) -> tuple[float, float]:
        return computing_s(plan(**changes), TINY, train, validation, steps, 1.0)

    rows, none = equal(8), RowLengths()
    once, _ = cost(rows, none, 2)
    assert cost(rows, none, 6)[0] == pytest.approx(3 * once), "three epochs of two steps"
    assert cost(equal(8, 20), none, 2)[0] > 2 * once
    _, last = cost(rows, rows, 6)
    assert last == pytest.approx(once / 3), "one validation at the end, forward only"
    assert cost(rows, rows, 6, test_freq=2)[1] == pytest.approx(3 * last)
    assert cost(rows, rows, 6, test_freq="after_each_epoch")[1] == pytest.approx(3 * last)
    assert cost(rows, rows, 5, test_freq=2)[1] == pytest.approx(3 * last), "and one after the last step"


def test_each_row_of_a_pair_counts_and_the_reference_reads_it_once():
    row = {"input_ids": torch.zeros(10)}
    measured = measure_rows([(row, row), (row, row)], plan(batch=2, preference={}))
    assert measured == equal(4)
    pairs, _ = computing_s(plan(batch=2, preference={}), TINY, measured, RowLengths(), 1, 1.0)
    alone, _ = computing_s(plan(batch=4), TINY, equal(4), RowLengths(), 1, 1.0)
    assert pairs == pytest.approx(alone * 4 / 3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_speed_is_that_of_updates_on_this_machine_and_leaves_random_numbers_as_they_are(dtype):
    before = torch.get_rng_state()
    assert 1e8 < cpu_flops(plan(dtype=dtype).actor, 0.1) < 1e14
    assert torch.equal(torch.get_rng_state(), before)


class Products(TorchDispatchMode):
    """Notes the types of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.types.add(args[-1].dtype)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dtype", "computed"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_speed_is_measured_in_the_type_in_which_the_engine_multiplies(dtype, computed):
    with Products() as products:
        cpu_flops(plan(dtype=dtype).actor, 0.0)
    assert products.types == {computed}


def test_ranks_of_a_machine_are_together_as_fast_as_its_cores(monkeypatch):
    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    try:
        torch.set_num_threads(cores)
        assert ranks_at_once() == 1.0
        for world, local, expected in ((2, 2, 1.0), (4, 2, 2.0), (3, 1, 3.0)):
            monkeypatch.setenv("WORLD_SIZE", str(world))
            monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
            assert ranks_at_once() == expected
        torch.set_num_threads(1)
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        assert ranks_at_once() == min(2, cores)
    finally:
        torch.set_num_threads(threads)
