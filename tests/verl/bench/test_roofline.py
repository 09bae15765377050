"""Tests of the operations that the roofline counts, and of the limits that it compares with."""

import pytest
import torch

from tests.bench.machine_limits import processor, product_rates, rounded, shortest
from tests.bench.recorded_step import Batches, Rows, Work
from tests.bench.roofline import Model, Phase, micro_batches, phases, show
from verl_agent.rollout.tokens import Segment

MODEL = Model(hidden=8, inner=16, weights=1000, head=80, attended=4, cached=2)
TIMING = {"gen": 1.0, "update_actor": 1.0, "update_weights": 1.0, "old_log_prob": 1.0}
PROMPT = [1, 2, 3]


def row(*response: int) -> Segment:
    return Segment(PROMPT, list(response), [1] * len(response), None)


def test_a_beginning_that_rows_of_a_micro_batch_share_is_computed_once():
    alone = micro_batches([row(4, 5)], 2, keep_all=False)
    assert alone == [Work(tokens=5, pairs=1 + 2 + 3 + 4 + 5, logits=2)]
    both = micro_batches([row(4, 5), row(4, 6)], 2, keep_all=False)  # the first reply token is the same one, too
    assert both == [Work(tokens=6, pairs=1 + 2 + 3 + 4 + 5 + 5, logits=3)]


def test_a_micro_batch_is_full_when_its_tree_has_as_many_tokens_as_its_longest_rows():
    rows = [row(number, number + 1) for number in (4, 6, 8, 10)]
    assert [work.tokens for work in micro_batches(rows, 2, keep_all=False)] == [3 + 3 * 2, 3 + 2]  # 2 rows have 10


def test_each_epoch_of_an_update_counts():
    ids = [[*PROMPT, 4, 5], [*PROMPT, 4, 6]]
    rows = Rows(ids, [[0, 0, 0, 1, 1]] * 2, [3, 3], ["a", "a"])
    found = {}
    for epochs in (1, 2):
        batches = Batches(mini=2, epochs=epochs, micro=2, scored=2)
        found[epochs] = {one.name: one for one in phases(MODEL, rows, TIMING, torch.float32, batches)}
    forward = MODEL.operations(Work(tokens=6, pairs=20, logits=3))
    assert found[1]["log-probs"].operations == found[2]["log-probs"].operations == forward
    assert (found[1]["update"].operations, found[2]["update"].operations) == (3 * forward, 6 * forward)
    assert found[2]["update"].moved == 2 * found[1]["update"].moved
    assert found[2]["update"].products == {rounded(6): 6 * forward}


def columns(phase: Phase, rates: dict[int, float], bandwidth: float) -> dict[str, str]:
    """Return the cells of a phase's line by column."""
    table = show([phase], rates, bandwidth)
    return {str(column.header): next(iter(column.cells), "") for column in table.columns}


def test_the_share_of_a_line_is_its_rate_over_its_limit_whose_sizes_weigh_by_their_operations():
    phase = Phase("update", "trainer", {32: 100e9, 64: 300e9}, 1e9, 10.0)
    line = columns(phase, {32: 100e9, 64: 100e9 * 3}, 1e9)  # a second for each of both sizes, 0.1 s for the bytes
    assert [line[name] for name in ("GFLOP", "GB", "seconds")] == ["400.0", "1.0", "10.0"]
    assert [line[name] for name in ("rate", "limit", "share")] == ["40.0 GFLOP/s", "200.0 GFLOP/s", "20%"]


def test_a_phase_that_memory_limits_is_compared_with_the_bandwidth():
    line = columns(Phase("transfer", "trainer", {}, 10e9, 5.0), {}, 4e9)
    assert [line[name] for name in ("rate", "limit", "share")] == ["2.0 GB/s", "4.0 GB/s", "50%"]


def test_a_row_whose_work_is_unknown_has_seconds_alone():
    line = columns(Phase("- verl's engine", "train_batch", {}, 0.0, 5.0), {}, 4e9)
    assert [line[name] for name in ("timed", "GFLOP", "seconds", "rate", "share")] == [
        *("train_batch", "", "5.0", "", ""),
    ]


def test_rates_are_measured_for_each_size_and_dtype():
    rates = product_rates([1, 64], 8, 16, (torch.float32, torch.bfloat16))
    assert {dtype: sorted(found) for dtype, found in rates.items()} == {
        torch.float32: [1, 64],
        torch.bfloat16: [1, 64],
    }
    assert min(min(found.values()) for found in rates.values()) > 0


def test_actions_take_turns_in_each_round():
    calls: list[str] = []
    shortest({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")})
    assert calls[:4] == ["a", "b", "a", "b"] and len(calls) > 4


@pytest.mark.parametrize(("tokens", "expected"), [(0.4, 1), (15, 15), (670, 672), (33, 32)])
def test_few_sizes_of_products_stand_for_all(tokens, expected):
    assert rounded(tokens) == expected


def test_the_processor_is_described_by_the_facts_that_decide_its_rates():
    info = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
    found = processor(f"{info}flags\t\t: fpu avx512f avx512_bf16\n\nprocessor\t: 1\nmodel name\t: other\n")
    kept = ("name", "family", "model", "stepping", "avx512_bf16", "amx_bf16")
    assert [found[name] for name in kept] == ["AMD EPYC", "25", "17", "1", True, False]
    assert int(found["logical_cores"]) >= int(found["usable_cores"]) >= 1
    assert processor("")["name"] == "unknown"
