"""Tests of the operations that the roofline counts."""

import torch

from tests.bench.recorded_step import Batches, Rows, Work
from tests.bench.roofline import Model, micro_batches, phases
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
    assert found[2]["update"].products_s == 2 * found[1]["update"].products_s > 0
