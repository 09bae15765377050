"""Test that each setting that reaches model, loss or step gives the result of a plain computation, or is refused.

`make trace-settings` prints how each key is tested, and runs these tests.
"""

import math
from fnmatch import fnmatchcase
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import log_softmax
from verl.trainer.config import AlgoConfig
from verl.workers.config import ActorConfig, CriticConfig, FSDPOptimizerConfig
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl.workers.utils.losses import ppo_loss, value_loss

from tests import ROOT
from tests.support.gradients import batch, by_hand, estimated, fields, log_probs, nested, padded, written_positions
from tests.support.traced_settings import (
    CANNOT_MATTER,
    COMPARED,
    LOSSES,
    OPTIMIZERS,
    REFUSED,
    TESTS,
    A,
    C,
    keys,
    place_of,
)
from verl_agent.training.preflight.condition_table import CONDITIONS
from verl_agent.training.preflight.update_conditions import optimizer_conditions

SPLITS = ([[0, 1, 2, 3, 4, 5]], [[5, 0], [1, 2, 3, 4]], [[0], [1], [2], [3], [4], [5]])
"""Micro-batches of the six rows."""
RANKS = ([[0, 1, 2, 3, 4, 5]], [[0, 1, 2], [3, 4, 5]])
"""Rows of one rank and of two."""
NEEDED = {
    "loss_scale_factor": {"loss_agg_mode": "seq-mean-token-sum-norm"},
    "kl_loss_coef": {"use_kl_loss": True},
    "kl_loss_type": {"use_kl_loss": True, "kl_loss_coef": 0.5},
    "loss_agg_mode": {"loss_scale_factor": 7.0},
    "lr_warmup_steps_ratio": {"lr_warmup_steps": -1},
    "min_lr_ratio": {"lr_scheduler_type": "cosine"},
    "num_cycles": {"lr_scheduler_type": "cosine"},
    "zero_indexed_step": {"lr_scheduler_type": "cosine"},
}
"""Settings with which a key has an effect."""
CONTEXT = {
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.adv_estimator": "gae",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.temperature": 1.0,
    f"{A}.use_dynamic_bsz": False,
    f"{A}.policy_loss.loss_mode": "vanilla",
}


def test_every_key_that_reaches_model_or_loss_has_a_case():
    assert len(keys()) > 300
    assert [key for key in keys() if not place_of(key)] == [], "add each to tests/support/traced_settings.py"


def test_no_case_is_left_of_a_key_that_does_not_exist():
    known = {*keys(), "actor_rollout_ref.rollout.ignore_eos"}
    assert {*COMPARED, *REFUSED} <= known
    assert [name for name in (*TESTS, *CANNOT_MATTER) if not any(fnmatchcase(key, name) for key in known)] == []
    assert [file for file in TESTS.values() if not (ROOT / "tests/verl/training" / file).is_file()] == []


def is_refused(key, value, context=None):
    values = CONTEXT | {f"{key.rpartition('.')[0]}.{name}": one for name, one in needed(key).items()} | (context or {})
    values[key] = value
    rows = [one for one in CONDITIONS if one.key == key]
    return any(one.message(values.get) for one in rows)


def needed(key):
    return NEEDED.get(key.rpartition(".")[2], {})


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in REFUSED.items() for value in values])
def test_a_value_at_the_edge_is_refused(key, value):
    context = {f"{A}.use_dynamic_bsz": True} if key.endswith("_token_len_per_gpu") else None
    assert is_refused(key, value, context)


def numbers_of(rows, settings, references):
    """Return the losses of the tokens of each row by the papers' equations, and their entropies."""
    losses = []
    for row, reference_T in zip(rows, references, strict=True):
        begin, terms = len(row.segment.prompt_ids), []
        for position in written_positions(row):
            all_V = log_softmax(row.logits_TV[begin + position - 1], -1)
            log_prob, advantage = all_V[row.segment.response_ids[position]], row.values_T[position]
            ratio = (log_prob - row.old_T[position]).exp()
            clipped = ratio.clamp(1 - settings["clip_ratio_low"], 1 + settings["clip_ratio_high"])
            loss = torch.max(-advantage * ratio, -advantage * clipped)
            if advantage < 0:  # dual clip, arXiv 1912.09729, equation 5
                loss = torch.min(loss, -advantage * settings["clip_ratio_c"])
            loss = loss - settings["entropy_coeff"] * -(all_V.exp() * all_V).sum()
            if settings["use_kl_loss"]:
                loss = loss + settings["kl_loss_coef"] * kl(log_prob - reference_T[position], settings["kl_loss_type"])
            terms.append(loss)
        losses.append(torch.stack(terms))
    return losses


def kl(difference, name):
    """Return an estimate of the KL divergence from log p - log q of a token (http://joschu.net/blog/kl-approx.html)."""
    if name.endswith("+"):  # the gradient of k2, whatever the value
        return difference.square() / 2
    square = difference.square() / 2
    third = ((-difference).exp() + difference - 1).clamp(-10, 10)
    return {"kl": difference, "k1": difference, "abs": difference.abs(), "mse": square, "k2": square}.get(name, third)


def mean_of(losses, mode, scale):
    if mode.startswith("token"):
        return torch.cat(losses).sum() / (sum(map(len, losses)) if mode == "token-mean" else 1)
    of_rows = [one.mean() if mode.endswith("token-mean") else one.sum() for one in losses]
    return torch.stack(of_rows).mean() / (scale if mode.endswith("norm") else 1)


ACTOR_DEFAULTS = {
    "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, "entropy_coeff": 0.0, "use_kl_loss": False,
    "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "loss_agg_mode": "token-mean", "loss_scale_factor": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"), [(key, one) for key, values in LOSSES.items() if key.startswith(A) for one in values]
)
def test_a_setting_of_the_policys_loss_gives_the_gradients_of_the_equations(key, value):
    if is_refused(key, value):
        return
    settings = {**ACTOR_DEFAULTS, **needed(key), key.rpartition(".")[2]: value}
    rows, generator = batch(), torch.Generator().manual_seed(3)
    references = [row.old_T + 0.2 * torch.randn(len(row.old_T), generator=generator).double() for row in rows]
    mean = mean_of(numbers_of(rows, settings, references), settings["loss_agg_mode"], settings["loss_scale_factor"])
    expected = torch.autograd.grad(mean, [row.logits_TV for row in rows])
    tokens = sum(sum(row.segment.response_mask) for row in rows)
    for ranks in RANKS:
        for split in SPLITS:
            actual = [torch.zeros_like(row.logits_TV) for row in rows]
            for members in ranks:
                for micro in split:
                    own = [index for index in micro if index in members]
                    gradients = policy_gradients(own, rows, references, settings, tokens, ranks)
                    for index, gradient in zip(own, gradients, strict=True):
                        actual[index] += gradient / len(ranks)
            for left, right in zip(actual, expected, strict=True):
                torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


def policy_gradients(own, rows, references, settings, tokens, ranks):
    """Return the gradients of a micro-batch of one rank by verl's loss."""
    if not own:
        return []
    chosen = [rows[index] for index in own]
    old, advantages, ref = ([f(index) for index in own] for f in (
        lambda index: rows[index].old_T, lambda index: rows[index].values_T, lambda index: references[index],
    ))  # fmt: skip
    data = fields(chosen, old_log_probs=padded(old), advantages=padded(advantages), ref_log_prob=padded(ref))
    data = with_counts(data, tokens, len(rows), len(ranks))
    config = ActorConfig(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, optim=None, **settings)
    output = {"log_probs": nested([log_probs(row) for row in chosen])}
    if settings["entropy_coeff"] != 0:
        all_TV = [log_softmax(row.logits_TV, -1) for row in chosen]
        output["entropy"] = nested([-(one.exp() * one).sum(-1) for one in all_TV])
    loss, _ = ppo_loss(config, output, data)
    return torch.autograd.grad(loss, [row.logits_TV for row in chosen])


def with_counts(data, tokens, rows, ranks):
    from verl.utils import tensordict_utils as tu

    for name, value in (("dp_size", ranks), ("batch_num_tokens", tokens), ("global_batch_size", rows)):
        tu.assign_non_tensor_data(data, name, value)
    return data


@pytest.mark.parametrize(
    ("key", "value"), [(key, one) for key, values in LOSSES.items() if key.startswith(C) for one in values]
)
def test_a_setting_of_the_critics_loss_gives_the_gradients_of_the_equation(key, value):
    if is_refused(key, value):
        return
    settings = {"loss_agg_mode": "token-mean", "loss_scale_factor": None, "cliprange_value": 0.5, **needed(key)}
    settings[key.rpartition(".")[2]] = value
    rows, tokens = batch(), sum(sum(row.segment.response_mask) for row in batch())
    predictions = [
        torch.cat([torch.zeros(len(row.segment.prompt_ids) - 1), row.values_T + 0.8 * row.old_T.cos(), torch.zeros(1)])
        .double().requires_grad_()
        for row in rows
    ]  # fmt: skip
    losses = []
    for row, predicted in zip(rows, predictions, strict=True):
        begin, terms = len(row.segment.prompt_ids) - 1, []
        for position in written_positions(row):
            now, before, target = predicted[begin + position], row.values_T[position], row.old_T[position]
            near = now.clamp(before - settings["cliprange_value"], before + settings["cliprange_value"])
            terms.append(torch.max((now - target) ** 2, (near - target) ** 2) / 2)
        losses.append(torch.stack(terms))
    mean = mean_of(losses, settings["loss_agg_mode"], settings["loss_scale_factor"])
    expected = torch.autograd.grad(mean, predictions)
    config = CriticConfig(strategy="fsdp", use_dynamic_bsz=True, optim=None, model=None, **settings)
    for split in SPLITS:
        actual = [torch.zeros_like(one) for one in predictions]
        for micro in split:
            chosen = [rows[index] for index in micro]
            columns = {"values": padded([row.values_T for row in chosen])}
            data = fields(chosen, **columns, returns=padded([row.old_T for row in chosen]))
            output = {"values": nested([predictions[index] for index in micro])}
            loss, _ = value_loss(config, output, with_counts(data, tokens, len(rows), 1))
            gradients = torch.autograd.grad(loss, [predictions[one] for one in micro])
            for index, gradient in zip(micro, gradients, strict=True):
                actual[index] += gradient
        for left, right in zip(actual, expected, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("key", ["gamma", "lam"])
@pytest.mark.parametrize("value", COMPARED["algorithm.gamma"])
def test_a_discount_gives_the_advantages_of_the_equation(key, value):
    if is_refused(f"algorithm.{key}", value):
        return
    rows, config = batch(), AlgoConfig(adv_estimator="gae", **{"gamma": 0.9, "lam": 0.8, key: value})
    advantages_BT = estimated(rows, "gae", config).batch["advantages"]
    for row, found_T, expected in zip(rows, advantages_BT, by_hand(rows, "gae", config), strict=True):
        wanted = torch.tensor(expected, dtype=found_T.dtype)
        torch.testing.assert_close(found_T[written_positions(row)], wanted, rtol=1e-5, atol=1e-6)


STEPS = 6
STEP_DEFAULTS = {
    "lr": 0.1, "weight_decay": 0.01, "betas": [0.9, 0.999], "clip_grad": 1.0, "lr_warmup_steps": -1,
    "lr_warmup_steps_ratio": 0.0, "lr_scheduler_type": "constant", "min_lr_ratio": 0.0, "num_cycles": 0.5,
    "zero_indexed_step": True, "override_optimizer_config": None,
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, one) for name, values in OPTIMIZERS.items() for one in values])
def test_a_setting_of_the_optimizer_gives_the_weights_of_adamws_equations(name, value):
    """AdamW (arXiv 1711.05101, algorithm 2) with a norm of gradients of at most `clip_grad`."""
    if any(is_refused(f"{model}.optim.{name}", value) for model in (A, C)):
        assert all(is_refused(f"{model}.optim.{name}", value) for model in (A, C))
        return
    settings = {**STEP_DEFAULTS, **needed(f"optim.{name}"), name: value}
    module = torch.nn.Linear(3, 1, bias=False).double()
    start = module.weight.detach().clone()
    config = FSDPOptimizerConfig(total_training_steps=STEPS, **settings)
    engine = SimpleNamespace(module=module, optimizer_config=config, rank=1, scaler=None, _qat_enabled=False)
    engine.optimizer = build_optimizer(module.parameters(), config)
    scheduler = FSDPEngine._build_lr_scheduler(engine, engine.optimizer)
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(1, 3, generator=generator).double() for _ in range(STEPS)]
    for gradient in gradients:
        module.weight.grad = gradient.clone()
        FSDPEngine.optimizer_step(engine)
        scheduler.step()
    torch.testing.assert_close(module.weight.detach(), adamw(start, gradients, settings), rtol=1e-9, atol=1e-9)


def adamw(weight, gradients, settings):
    options = settings["override_optimizer_config"] or {}
    (first_decay, second_decay), eps = settings["betas"], options.get("eps", 1e-8)
    first = second = largest = torch.zeros_like(weight)
    for step, gradient in enumerate(gradients):
        gradient = gradient * min(1.0, settings["clip_grad"] / (gradient.norm().item() + 1e-6))
        rate = settings["lr"] * share_of_rate(step, settings)
        weight = weight * (1 - rate * settings["weight_decay"])
        first = first_decay * first + (1 - first_decay) * gradient
        second = second_decay * second + (1 - second_decay) * gradient**2
        largest = torch.max(largest, second) if options.get("amsgrad") else second
        moved = (first / (1 - first_decay ** (step + 1))) / ((largest / (1 - second_decay ** (step + 1))).sqrt() + eps)
        weight = weight - rate * moved
    return weight


def share_of_rate(step, settings):
    warmup = settings["lr_warmup_steps"]
    warmup = warmup if warmup > 0 else int(settings["lr_warmup_steps_ratio"] * STEPS)
    cosine = settings["lr_scheduler_type"] == "cosine"
    if cosine and not settings["zero_indexed_step"]:
        step += 1
    low = settings["min_lr_ratio"] or 0.0
    if step < warmup:
        return low + (1 - low) * step / warmup if cosine else step / warmup
    if not cosine:
        return 1.0
    progress = (step - warmup) / max(1, STEPS - warmup)
    wave = math.cos(math.pi * settings["num_cycles"] * 2 * progress)
    return max(low, wave * (1 - low) / 2 + (1 + low) / 2)


def test_supervised_training_and_dpo_have_the_conditions_of_the_optimizer():
    assert {one.key for one in optimizer_conditions("optim")} >= {"optim.clip_grad", "optim.lr"}
