"""Test that verl's worker computes the log-probs of the teacher, not those of the policy."""

import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from tests.support.composing import ROOT, recipe
from tests.support.engines import batch_of, one_rank
from tests.support.letters import LOST, WON
from tests.support.models import write_byte_model
from verl_agent.config.plan import RunPlan
from verl_agent.training.distillation import TaughtWorker
from verl_agent.training.verl_config import to_verl

TEXTS = ["Guess a whole number from 1 to 12. Higher. Lower."]
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WG_BACKEND": "ray"}
RANK |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # read, and not used


def test_the_reference_of_a_policy_with_lora_is_the_whole_teacher(tmp_path, monkeypatch):
    policy = write_byte_model(tmp_path / "policy", TEXTS, vocabulary=300)
    teacher = write_byte_model(tmp_path / "teacher", TEXTS, vocabulary=300, hidden_size=64, num_hidden_layers=2)
    changes = [
        "+overlay/algorithm=distill",
        f"distillation.teacher_models.teacher_model.model_path={teacher}",
        f"actor_rollout_ref.model.path={policy}",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.ref.fsdp_config.mixed_precision={param_dtype: fp32}",
    ]
    config = to_verl(RunPlan.read(recipe(ROOT / "recipes/guess_number/grpo_cpu.yaml", *changes)).located())
    OmegaConf.set_struct(config, False)
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    one_rank()
    worker = TaughtWorker(config.actor_rollout_ref, "ref", distillation_config=config.distillation)
    worker.init_model()
    found = worker.compute_ref_log_prob(batch_of([WON, LOST], calculate_entropy=False, compute_loss=False))["log_probs"]
    model = AutoModelForCausalLM.from_pretrained(teacher).eval()
    for row_T, segment in zip(found.unbind(), (WON, LOST), strict=True):
        ids = torch.tensor(segment.prompt_ids + segment.response_ids)
        with torch.no_grad():
            plain = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        written = len(segment.prompt_ids) - 1 + torch.tensor(segment.response_mask).nonzero()[:, 0]
        assert torch.allclose(row_T[written].float(), plain[written], rtol=0, atol=1e-4)
