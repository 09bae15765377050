"""Test by enumeration that the gradient is right for tokens of the whole distribution, and wrong otherwise.

All tokens of a small vocabulary are enumerated, weighted with the probability with which the engine samples them. This
is why preflight refuses `top_p` and `top_k` in training, in both modes of verl's correction.
"""

import pytest
import torch
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig

LOGITS = torch.tensor([2.0, 1.2, 0.3, -0.5, -1.0, -2.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([-1.0, 0.8, -0.4, 1.5, 0.2, -0.9], dtype=torch.float64)
KEPT = {"whole": 6, "top_k=5": 5, "top_k=2": 2}
MODES = ["bypass", "bypass with raw log-probs", "decoupled", "decoupled with weights"]


def gradient(kept: int, mode: str, temperature: float = 1.0, trained_at: float | None = None) -> torch.Tensor:
    """Return the expected gradient of an update with verl's loss, over all tokens that the engine may sample."""
    logits_V = LOGITS.clone().requires_grad_()
    now_V = torch.log_softmax(logits_V / (trained_at or temperature), -1)
    whole_V = torch.log_softmax(LOGITS / temperature, -1)
    chosen = whole_V.topk(kept).indices.sort().values
    sampled_K = torch.log_softmax(whole_V[chosen], -1)
    mask_K1 = torch.ones(len(chosen), 1)
    raw = mode.endswith("raw log-probs")
    old_K = sampled_K if mode == "bypass" else (whole_V[chosen] if raw else now_V[chosen].detach())
    weights_K1 = None
    if mode.endswith("weights"):
        settings = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
        found, _, _ = compute_rollout_correction_and_rejection_mask(
            old_log_prob=old_K[:, None],
            rollout_log_prob=sampled_K[:, None],
            response_mask=mask_K1,
            rollout_is=settings.rollout_is,
            rollout_is_threshold=settings.rollout_is_threshold,
        )
        weights_K1 = found.batch["rollout_is_weights"]
    total = torch.zeros_like(LOGITS)
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, optim=None)
    for place, token in enumerate(chosen):
        loss, _ = compute_policy_loss_vanilla(
            old_K[place].view(1, 1), now_V[token].view(1, 1), ADVANTAGES[token].view(1, 1), torch.ones(1, 1),
            config=config, rollout_is_weights=None if weights_K1 is None else weights_K1[place].view(1, 1),
        )  # fmt: skip
        total -= sampled_K[place].exp() * torch.autograd.grad(loss, logits_V, retain_graph=True)[0]
    return total


def policy_gradient(temperature: float = 1.0) -> torch.Tensor:
    logits_V = LOGITS.clone().requires_grad_()
    expected = (torch.softmax(logits_V / temperature, -1) * ADVANTAGES).sum()
    return torch.autograd.grad(expected, logits_V)[0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_the_whole_distribution_give_the_policy_gradient(mode, temperature):
    found = gradient(KEPT["whole"], mode, temperature)
    torch.testing.assert_close(found, policy_gradient(temperature), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cut", ["top_k=5", "top_k=2"])
@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_a_cut_distribution_give_another_gradient_in_every_mode(mode, cut):
    found, wanted = gradient(KEPT[cut], mode), policy_gradient()
    cosine = torch.cosine_similarity(found, wanted, dim=0)
    assert (found - wanted).norm() > 0.02 * wanted.norm() and cosine < 0.9999


def test_below_a_kept_mass_of_0_8_negative_advantages_have_no_gradient_in_bypass_mode():
    assert torch.softmax(LOGITS, -1).topk(1).values.sum() < 0.8
    assert ADVANTAGES[0] < 0
    assert gradient(1, "bypass").norm() == 0


def test_another_temperature_of_the_loss_than_of_the_engine_gives_another_gradient():
    found = gradient(KEPT["whole"], "bypass with raw log-probs", 0.7, trained_at=1.0)
    assert torch.cosine_similarity(found, policy_gradient(0.7), dim=0) < 0.9999
