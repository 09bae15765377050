"""Tests that the CPU's engines give the gradients and log-probs of verl's, with less work and in float32."""

from functools import partial
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.utils.losses import sft_loss

from tests.support.engines import batch_of, gradients, jagged, new_engine, policy_loss, relative_difference
from tests.support.letters import LOST, SHORT, TRUNCATED, WON
from tests.support.models import write_byte_model
from verl_agent.platform.cpu_engine import (
    CpuLanguageEngine,
    CpuValueEngine,
    kept_casts,
)
from verl_agent.platform.log_prob_head import LogProbHead, returns_output_of
from verl_agent.platform.micro_batches import split_micro_batches
from verl_agent.rollout.tokens import Segment

ROWS = [WON, LOST, SHORT, TRUNCATED, SHORT, WON, LOST, TRUNCATED]
FILLER = Segment([2] * 127, [2], [0], [0.0])
SHORT_FILLER = Segment([2], [2], [0], [0.0])
SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "initializer_range": 0.15}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random llama with logits as large as those of a trained one."""
    folder = tmp_path_factory.mktemp("model")
    return write_byte_model(folder, ["go up"], 300, **SIZES)


@pytest.fixture(scope="module")
def verls(model) -> FSDPEngineWithLMHead:
    return new_engine(FSDPEngineWithLMHead, model, "float32")


@pytest.fixture(scope="module")
def ours(model) -> CpuLanguageEngine:
    return new_engine(CpuLanguageEngine, model, "float32")


@pytest.mark.parametrize(
    "settings",
    [{}, {"entropy_coeff": 0.1}, {"loss_agg_mode": "seq-mean-token-sum", "loss_scale_factor": 50}],
    ids=["token mean", "entropy bonus", "sequence mean"],
)
def test_gradient_and_metrics_are_those_of_verl(verls, ours, settings):
    loss = policy_loss(**settings)
    expected, theirs = gradients(verls, batch_of(ROWS, temperature=0.7), loss)
    actual, mine = gradients(ours, batch_of(ROWS, temperature=0.7), loss)
    assert relative_difference(actual, expected) < 1e-5
    for name in ("actor/pg_loss", "actor/entropy_loss"):
        assert mine["metrics"][name].aggregate() == pytest.approx(theirs["metrics"][name].aggregate(), rel=1e-4)


def test_an_update_changes_the_weights_of_the_next_pass(model):
    """Autocast's copies of the weights last for a batch, and must not outlast the step behind it."""
    engine = new_engine(CpuLanguageEngine, model, lr=1e-2)
    data = batch_of(ROWS, compute_loss=False)
    before = engine.infer_batch(data)["model_output"]["log_probs"].values()
    with engine.train_mode():
        engine.train_batch(batch_of(ROWS), policy_loss())
    after = engine.infer_batch(data)["model_output"]["log_probs"].values()
    fresh = new_engine(CpuLanguageEngine, model)
    fresh.module.load_state_dict(engine.module.state_dict())
    assert (after - before).abs().max() > 0.1
    assert torch.equal(after, fresh.infer_batch(data)["model_output"]["log_probs"].values())


def test_an_output_layer_that_is_the_embedding_travels_once(ours):
    """The engine ties both itself, as when it loads the files of the model."""
    sent = dict(ours.get_per_tensor_param()[0])
    assert "lm_head.weight" in ours.module.state_dict() and "lm_head.weight" not in sent
    assert set(sent) == set(ours.module.state_dict()) - {"lm_head.weight"}


def test_casts_of_weights_are_kept_within_a_block():
    weight, inputs = Parameter(torch.eye(4)), torch.ones(2, 4)

    def product() -> float:
        with torch.autocast("cpu", torch.bfloat16):
            return float((inputs @ weight).detach().sum())

    with kept_casts():
        first = product()
        weight.data.mul_(2)
        assert product() == first == 8
    assert product() == 16


def test_gradients_of_micro_batches_that_share_casts_add_up(model):
    engine = new_engine(CpuLanguageEngine, model)
    one, _ = gradients(engine, batch_of(ROWS, micro_batch=8), policy_loss())
    four, _ = gradients(engine, batch_of(ROWS, micro_batch=2), policy_loss())
    assert relative_difference(four, one) < 0.02


def test_one_rank_loads_a_checkpoint_of_sharded_tensors(model, tmp_path):
    verls, engine = (new_engine(kind, model, "float32") for kind in (FSDPEngineWithLMHead, CpuLanguageEngine))
    with verls.train_mode():
        verls.train_batch(batch_of(ROWS), policy_loss())
    verls.save_checkpoint(str(tmp_path))
    assert isinstance(next(verls.module.parameters()), DTensor) and type(next(engine.module.parameters())) is Parameter
    engine.load_checkpoint(str(tmp_path))
    expected = {name: value.full_tensor() for name, value in verls.module.state_dict().items()}
    torch.testing.assert_close(dict(engine.module.state_dict()), expected)
    moments = [state["exp_avg"] for state in engine.optimizer.state.values()]
    assert moments and all(type(value) is torch.Tensor for value in moments)


@pytest.mark.parametrize("filler", [FILLER, SHORT_FILLER], ids=["128 tokens", "2 tokens"])
def test_rows_without_loss_are_not_computed(verls, ours, filler):
    rows = [filler, *ROWS[:5], filler, filler, *ROWS[4:], *[filler] * 4]
    passed: list[int] = []
    hook = ours.module.model.embed_tokens.register_forward_pre_hook(lambda _, ids: passed.append(ids[0].numel()))
    actual, _ = gradients(ours, batch_of(rows), policy_loss())
    hook.remove()
    expected, _ = gradients(verls, batch_of(rows), policy_loss())
    assert relative_difference(actual, expected) < 1e-5
    assert sum(passed) <= sum(len(row.prompt_ids) + len(row.response_ids) for row in ROWS)


@pytest.mark.parametrize("shares", [True, False])
def test_a_batch_without_any_loss_is_computed_as_by_verl(shares):
    groups = split_micro_batches(batch_of([SHORT_FILLER] * 8), shares, keep_all=False)
    assert sorted(torch.cat(groups).tolist()) == list(range(8))


def predicts_written(segment: Segment) -> torch.Tensor:
    """Return bool `(T,)`, True where the model wrote the next token."""
    return torch.tensor([0] * (len(segment.prompt_ids) - 1) + segment.response_mask + [0]).bool()


def test_log_probs_are_in_the_order_of_the_rows_and_zero_outside_of_the_loss(verls, ours):
    data = batch_of(ROWS, compute_loss=False)
    expected, actual = (engine.infer_batch(data)["model_output"] for engine in (verls, ours))
    for row, segment in enumerate(ROWS):
        written = predicts_written(segment)
        for name in ("log_probs", "entropy"):
            left, right = (output[name].unbind()[row] for output in (actual, expected))
            assert torch.allclose(left[written], right[written], atol=1e-4)
            assert (left[~written] == 0).all() and left[written].abs().min() > 0


def test_log_probs_in_bfloat16_are_near_those_in_float32(model, tmp_path):
    """In verl's engine the residual stream and the logits have 8 bits; here products alone have."""
    peaked = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        peaked.model.embed_tokens.weight.mul_(6)  # logits up to 20, as those of a trained model
        for layer in peaked.model.layers:
            for weight in (layer.mlp.down_proj.weight, layer.self_attn.o_proj.weight):
                weight.mul_(0.1)
    peaked.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path)
    written = torch.cat(
        [torch.tensor([0] * (len(one.prompt_ids) - 1) + one.response_mask + [0]).bool() for one in ROWS]
    )
    values = {}
    for kind, dtype in ((FSDPEngineWithLMHead, "float32"), (FSDPEngineWithLMHead, "bf16"), (CpuLanguageEngine, "bf16")):
        output = new_engine(kind, tmp_path, dtype).infer_batch(batch_of(ROWS, compute_loss=False))["model_output"]
        values[kind, dtype] = output["log_probs"].values().float()[written]
    exact = values[FSDPEngineWithLMHead, "float32"]
    errors = {kind: (values[kind, "bf16"] - exact).abs() for kind in (FSDPEngineWithLMHead, CpuLanguageEngine)}
    assert errors[CpuLanguageEngine].mean() < 0.02 and errors[CpuLanguageEngine].max() < 0.1
    assert errors[CpuLanguageEngine].mean() < errors[FSDPEngineWithLMHead].mean() / 4


def supervised(rows: list[Segment], **options: object) -> TensorDict:
    """Return rows as verl's SFT trainer gives them to an engine."""
    data = batch_of(rows, **options).select("input_ids", "position_ids")
    masks = [torch.tensor([0] * len(one.prompt_ids) + one.response_mask).float() for one in rows]
    data["loss_mask"] = jagged(masks)
    given = {"use_remove_padding": False, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2, "temperature": 1.0}
    tu.assign_non_tensor(data, **given, **options)
    return data


def test_supervised_gradient_is_that_of_verl(verls, ours):
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, optim=None)
    loss = partial(sft_loss, config=config)
    expected, _ = gradients(verls, supervised(ROWS), loss)
    actual, _ = gradients(ours, supervised(ROWS), loss)
    assert relative_difference(actual, expected) < 1e-5


@pytest.mark.parametrize("shares", [True, False])
def test_pairs_of_dpo_stay_in_one_micro_batch(shares):
    groups = split_micro_batches(supervised(ROWS, force_group_size=2), shares, keep_all=False)
    assert sorted(torch.cat(groups).tolist()) == list(range(8))
    pairs = [pair for group in groups for pair in group.view(-1, 2).tolist()]
    assert all(better + 1 == worse and better % 2 == 0 for better, worse in pairs)


def test_values_of_the_critic_are_those_of_verl(model):
    data = batch_of(ROWS, compute_loss=False)
    torch.manual_seed(0)
    expected = new_engine(FSDPEngineWithValueHead, model, "float32", "value_model").infer_batch(data)
    torch.manual_seed(0)
    actual = new_engine(CpuValueEngine, model, "float32", "value_model").infer_batch(data)
    left, right = (output["model_output"]["values"].values() for output in (actual, expected))
    assert torch.allclose(left, right, atol=1e-4) and left.abs().max() > 0.1


@pytest.mark.parametrize(("cap", "replaced"), [(None, True), (1.0, False)])
def test_a_model_with_a_soft_cap_keeps_the_logits_of_all_tokens(cap, replaced):
    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=cap, initializer_range=0.5, pad_token_id=0,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    head = LogProbHead.take_place(model)
    assert returns_output_of(model, head) is replaced


def test_verl_uses_these_engines_on_a_cpu():
    for kind, engine in (("language_model", CpuLanguageEngine), ("value_model", CpuValueEngine)):
        for strategy in ("fsdp", "fsdp2"):
            assert EngineRegistry.get_engine_cls(kind, strategy) is engine
