"""On-policy distillation: a teacher scores each token that the policy wrote, given the same history.

The teacher has the place of verl's reference policy: the trainer computes its log-probs of every row as those of the
initial model for a KL loss. The advantage of a token is minus the sampled estimate k1 of the reverse KL divergence,
log pi(y_t) - log p_teacher(y_t). It is that of verl's `distillation.distillation_loss` with `loss_mode=k1` and
`use_policy_gradient=true` (verl 0.9.1, trainer/distillation/losses.py, `distillation_loss`), and the policy loss of the
run clips and weights it. Its expected gradient is that of the reverse KL divergence in each state that the policy
reaches.

verl itself adds its loss in its workers, with the log-probs of a second vLLM engine on GPUs of its own. That loss
raises for a micro batch without a written token, such as padding and dropped episodes
(`compute_distillation_loss_range`), and for weights of the off-policy correction, the only column that it does not pad.
Its teacher has temperature 1, whatever the temperature of the policy.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from torch import Tensor
from transfer_queue import KVBatchMeta
from typing_extensions import override
from verl.trainer.ppo.utils import Role
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker, TrainingWorkerConfig

from verl_agent.config.plan_parts import Teacher
from verl_agent.training.grouped_batches import GroupedBatches
from verl_agent.training.turn_batch import fetch_columns, write_columns

UNLIKE_POLICY = {"lora_rank": 0, "lora_adapter_path": None, "tokenizer_path": None, "hf_config_path": None}
"""Settings of the policy's model that its teacher does not share."""


class TaughtWorker(ActorRolloutRefWorker):
    """verl's worker of actor, engine and reference, whose reference model is the teacher."""

    @override
    def ref_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        """Return the worker of the teacher; verl calls the class `TrainingWorker` by this name."""
        path = self.distillation_config.teacher_models.teacher_model.model_path
        teacher = omega_conf_to_dataclass({**self.config.model, **UNLIKE_POLICY, "path": path})
        teacher.mtp = config.model_config.mtp
        return TrainingWorker(config=replace(config, model_config=teacher))


class DistilledTraining(GroupedBatches):
    """Trainer that computes a teacher's log-probs as verl does those of the reference policy."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if self.plan.teacher:
            self.use_reference_policy = True

    @override
    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.plan.teacher:  # verl has made a worker without a reference, which its config does not ask for
            del self.role_worker_mapping[Role.ActorRollout]
            self.role_worker_mapping[Role.ActorRolloutRef] = ray.remote(TaughtWorker)
            self.mapping[Role.ActorRolloutRef] = self.mapping.pop(Role.ActorRollout)

    @override
    def _setup(self) -> None:
        super()._setup()
        if self.plan.teacher:
            self.ref_in_actor = False  # with LoRA verl takes the policy without its adapters for the reference

    @override
    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Add the teacher's advantages to those of the reward, or replace them."""
        batch = super()._compute_advantage(batch, metrics)
        if self.plan.teacher is None:
            return batch
        columns = fetch_columns(batch, ("advantages", "old_log_probs", "ref_log_prob", "response_mask"))
        masks = columns["response_mask"]
        gaps = reverse_kl(columns["old_log_probs"], columns["ref_log_prob"], masks)
        write_columns(batch, {"advantages": taught_advantages(columns["advantages"], gaps, self.plan.teacher)})
        written = sum(int(mask.sum()) for mask in masks)
        metrics["distillation/reverse_kl"] = sum(float(gap.sum()) for gap in gaps) / max(written, 1)
        return batch


def reverse_kl(policy: Sequence[Tensor], teacher: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """Return the estimate k1 of the reverse KL divergence at each token.

    Args:
        policy: log-probs of the policy before the update, float `(T,)` for each row.
        teacher: those of the teacher.
        masks: 0/1 `(T,)` for each row, 1 where the policy wrote the token.

    Returns:
        Float `(T,)` for each row in nats, 0 where the mask is 0.
    """
    return [torch.where(mask.bool(), own - its, 0.0) for own, its, mask in zip(policy, teacher, masks, strict=True)]


def taught_advantages(advantages: Sequence[Tensor], gaps: Sequence[Tensor], teacher: Teacher) -> list[Tensor]:
    """Return the advantages of a run with a teacher, float `(T,)` for each row.

    Args:
        advantages: those of the environment's reward.
        gaps: see `reverse_kl`.
    """
    if teacher.clamp is not None:
        gaps = [gap.clamp(-teacher.clamp, teacher.clamp) for gap in gaps]
    if not teacher.adds_rewards:
        return [-gap for gap in gaps]
    return [own - teacher.coefficient * gap for own, gap in zip(advantages, gaps, strict=True)]
