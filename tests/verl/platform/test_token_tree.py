"""Tests that rows of a tree of tokens have the log-probs and gradients of single rows."""

from itertools import accumulate, product

import pytest
import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from tests.support.engines import batch_of, gradients, jagged, new_engine, policy_loss, relative_difference
from tests.support.models import write_byte_model, write_qwen2
from verl_agent.platform.cpu_engine import CpuLanguageEngine
from verl_agent.platform.micro_batches import split_micro_batches
from verl_agent.platform.token_tree import TokenTree, pack
from verl_agent.platform.tree_attention import allows_trees, use_float32_attention
from verl_agent.rollout.tokens import Segment

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
TURN = [20, 21, 22]
DROPPED = Segment([5, 6], [7, 8, 2], [0, 0, 0], [0.0] * 3)


def row(prompt: list[int], *turns: list[int]) -> Segment:
    """Return a row of turns, each with an observation of two tokens behind it, without the last one."""
    ids, mask = [], []
    for turn in turns:
        ids += [*turn, 30, 31]
        mask += [1] * len(turn) + [0, 0]
    return Segment(prompt, ids[:-2], mask[:-2], [0.0] * (len(ids) - 2))


GROUP = [row(PROMPT, TURN, [40 + sample] * (sample + 1)) for sample in range(4)]
BATCHES = {
    "groups": [*GROUP, *[row([5, 6, 50, 51], [60 + sample, 61]) for sample in range(4)]],
    "segments": [*GROUP, *[row([*PROMPT, *TURN, 33], [70, 71], [sample]) for sample in (2, 3)], *GROUP[:2]],
    "nothing shared": [row([100 + sample, 5, 6], [7, 8, 9 + sample]) for sample in range(8)],
    "identical": [GROUP[1]] * 8,
    "a row within another": [
        row(PROMPT, TURN),
        row(PROMPT, TURN, TURN),
        row(PROMPT, TURN),
        row(PROMPT, TURN, TURN, TURN),
    ],
    "dropped rows": [*GROUP, DROPPED, DROPPED, GROUP[0], DROPPED],
}
LOSSES = {
    "token mean": {},
    "sequence mean": {"loss_agg_mode": "seq-mean-token-mean"},
    "entropy": {"entropy_coeff": 0.1},
    "dual clip": {"clip_ratio": 0.01, "clip_ratio_c": 1.1},
    "GSPO": {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "seq-mean-token-mean"},
    **{
        f"KL {kind}": {"use_kl_loss": True, "kl_loss_coef": 0.5, "kl_loss_type": kind}
        for kind in ("kl", "abs", "mse", "low_var_kl")
    },
    "importance weights": {},
}


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def engine(request, tmp_path_factory: pytest.TempPathFactory) -> CpuLanguageEngine:
    """Return an engine that computes trees, with a random model of large logits."""
    write = {"llama": write_byte_model, "qwen2": write_qwen2}[request.param]
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "initializer_range": 0.15}
    made = new_engine(CpuLanguageEngine, write(tmp_path_factory.mktemp("model"), ["go up"], 300, **sizes), "float32")
    assert made.shares
    return made


def with_columns(rows: list[Segment], weighted: bool, **options: object) -> TensorDict:
    data = batch_of(rows, micro_batch=2, temperature=0.7, **options)
    generator = torch.Generator().manual_seed(1)
    noise = [torch.randn(len(one.response_mask), generator=generator) for one in rows]
    data["ref_log_prob"] = jagged([-1 + 0.3 * values for values in noise])
    if weighted:
        data["rollout_is_weights"] = jagged([values.exp() for values in noise])
    return data


def in_turn(engine: CpuLanguageEngine, compute: object) -> list:
    """Return the result of a function with single rows, and with a tree."""
    results = []
    for shares in (False, True):
        engine.shares = shares
        results.append(compute())
    return results


@pytest.mark.parametrize(("batch", "loss"), [*product(BATCHES, ["entropy"]), *product(["groups"], LOSSES)])
def test_gradients_and_losses_are_those_of_single_rows(engine, batch, loss):
    def compute() -> tuple:
        return gradients(
            engine, with_columns(BATCHES[batch], loss == "importance weights"), policy_loss(**LOSSES[loss])
        )

    (expected, theirs), (actual, ours) = in_turn(engine, compute)
    assert relative_difference(actual, expected) < 2e-6
    name = "actor/pg_loss"
    assert ours["metrics"][name].aggregate() == pytest.approx(theirs["metrics"][name].aggregate(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("batch", BATCHES)
def test_log_probs_and_entropies_of_a_pass_without_loss_are_those_of_single_rows(engine, batch):
    def compute() -> TensorDict:
        return engine.infer_batch(with_columns(BATCHES[batch], False, compute_loss=False))["model_output"]

    expected, actual = in_turn(engine, compute)
    for name in ("log_probs", "entropy"):
        torch.testing.assert_close(actual[name].values(), expected[name].values(), rtol=1e-5, atol=1e-5)
        assert torch.equal(actual[name].offsets(), expected[name].offsets())


def test_random_trees_return_each_row():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        rows = [
            torch.randint(0, 2, (int(size),), generator=generator)
            for size in torch.randint(1, 9, (6,), generator=generator)
        ]
        tree = TokenTree.of(rows)
        ends = [0, *accumulate(len(one) for one in rows)]
        for one, start, end in zip(rows, ends, ends[1:], strict=False):
            places = tree.places_T[start:end]
            assert torch.equal(tree.ids_U[places], one)
            assert torch.equal(tree.depths_U[places], torch.arange(len(one)))
        beginnings = {tuple(one[: end + 1].tolist()) for one in rows for end in range(len(one))}
        assert len(tree.ids_U) == len(beginnings)


def test_micro_batches_have_no_more_tokens_than_the_longest_rows():
    rows = BATCHES["groups"]
    groups = split_micro_batches(batch_of(rows, micro_batch=2), shares=True, keep_all=True)
    longest = max(len(one.prompt_ids) + len(one.response_ids) for one in rows)
    sizes = []
    for group in groups:
        tokens = [torch.tensor(rows[place].prompt_ids + rows[place].response_ids) for place in group]
        sizes.append(len(TokenTree.of(tokens).ids_U))
    assert max(sizes) <= 2 * longest and sizes == sorted(sizes, reverse=True) and len(groups) < 4
    assert sorted(torch.cat(groups).tolist()) == list(range(8))


def test_a_unit_that_is_larger_than_the_budget_has_a_micro_batch():
    rows = [[torch.tensor([1, 2, 3])], [torch.tensor([4, 5])], [torch.tensor([4, 6])]]
    assert pack(rows, budget=2) == [[0], [1], [2]] and pack(rows, budget=3) == [[0], [1, 2]]


@pytest.mark.parametrize(("window", "dropout", "allowed"), [(None, 0.0, True), (4096, 0.0, False), (None, 0.1, False)])
def test_a_model_with_limited_or_random_attention_keeps_single_rows(window, dropout, allowed):
    config = MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, sliding_window=window, initializer_range=0.5, pad_token_id=0,
        attention_dropout=dropout,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    use_float32_attention(model)
    assert allows_trees(model) is allowed
    assert allows_trees(model.bfloat16()) is allowed


def test_a_model_without_attention_in_trees_keeps_single_rows(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(write_qwen2(tmp_path, ["go up"], 300, initializer_range=0.5)).eval()
    assert not allows_trees(model)
