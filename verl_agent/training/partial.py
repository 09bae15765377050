"""Trainers whose unfinished episodes continue after an update of the weights.

Their names for `trainer.v1.trainer_mode` are `verl_agent_partial`, where engine and trainer share the devices, and
`verl_agent_separate`, where engines have devices of their own.
"""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import torch
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from typing_extensions import override
from verl.trainer.ppo.v1 import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.utils import tensordict_utils
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

from verl_agent.trace.abandoned import add_abandoned, dispatched_after
from verl_agent.training.groups import group_of
from verl_agent.training.invalid_episodes import PARTITION
from verl_agent.training.phases import marking_phases
from verl_agent.training.trainer import EpisodeTraining


@dataclass(slots=True)
class ReplyParts:
    """Parts of a reply; an update of the weights ends a part, and the next one follows the update.

    Attributes:
        versions: version of the weights and number of tokens of each part that has tokens.
        paused_s: seconds between the parts, and before the first one, in which the engine took no requests.
        requests: number of requests so far.
    """

    versions: list[tuple[int, int]] = field(default_factory=list)
    paused_s: float = 0.0
    requests: int = 0
    _ended_at: float = 0.0

    def begin(self) -> None:
        """Begin the next part."""
        if self.requests:
            self.paused_s += time.monotonic() - self._ended_at
        self.requests += 1

    def end(self, output: Any) -> None:
        """Add a part."""
        self._ended_at = time.monotonic()
        self.paused_s += output.extra_fields.get("paused_s", 0.0)
        if output.token_ids:
            self.versions.append((output.extra_fields.get("global_steps") or 0, len(output.token_ids)))


class _RecordingClient(LLMServerClient):
    """verl's client, which also notes each request of a reply in its `ReplyParts`."""

    @override
    async def generate(self, request_id: str, *, parts: ReplyParts, **kwargs: Any) -> Any:
        parts.begin()
        output = await super().generate(request_id, **kwargs)
        parts.end(output)
        return output


class ResumingClient(FullyAsyncLLMServerClient, _RecordingClient):
    """verl's `FullyAsyncLLMServerClient`, which continues interrupted replies, with the version of every token.

    All parts of a reply have the same seed: an engine draws by seed and position, see `seeded_sampling.py`.
    By the order of bases, each request of `FullyAsyncLLMServerClient.generate` goes through `_RecordingClient`.
    """

    @override
    async def generate(self, request_id: str, **kwargs: Any) -> Any:
        """`extra_fields` also has `versions` and `paused_s` of `ReplyParts`."""
        parts = ReplyParts()
        output = await super().generate(request_id, parts=parts, **kwargs)
        output.extra_fields |= {"versions": parts.versions, "paused_s": parts.paused_s}
        return output


TRAIN = "train"
"""verl's partition of training episodes in TransferQueue."""
UNFINISHED = ("pending", "running", "failure")
"""verl's status of a prompt whose episodes are not all played. At `failure` the agent loop of one has crashed."""


class PartialTraining(EpisodeTraining):
    """`EpisodeTraining` with episodes in flight between two steps; subclasses choose the devices of the engines.

    A checkpoint holds verl's queue. Finished groups that no step has trained on are restored from it, and groups in
    flight are played again from their first turn, as prompts of the step that resumes. So is a group that crashed: the
    step that would have reported it had not begun, and the cause may be repaired.
    """

    @override
    def _add_batch_to_generate(self) -> None:
        """The last steps dispatch no group that no step would train on."""
        size = self.plan.batch.tasks
        steps_left = self.total_training_steps - self.global_steps + 1
        missing = steps_left * size - len(prompt_tags())
        if missing >= size:
            super()._add_batch_to_generate()
        elif missing > 0:
            self._add_prompts_to_generate(missing)

    @override
    def _load_checkpoint(self) -> None:
        """Remove the rows that the step of the checkpoint has trained on.

        Groups of later steps, which an earlier start dispatched before it was killed, are added to the run's file of
        abandoned groups: their steps are played again.
        """
        super()._load_checkpoint()
        clear_without_prompt()
        schedule = self.plan.schedule
        if schedule.record_dir and (lost := dispatched_after(schedule.records, self.global_steps)):
            add_abandoned(self.plan.schedule.folder, lost)

    @override
    def _reissue_inflight_prompts(self, partition_id: str = TRAIN) -> int:
        """The prompts are those of the present step in every way: turn limit, seeds and uid.

        An episode that ended before the run did is recorded under the old uid, so records of the two attempts at a
        group are never mixed. The old uids are added to the run's file of abandoned groups.
        """
        unfinished = sorted(key for key, tag in prompt_tags().items() if tag["status"] in UNFINISHED)
        if not unfinished:
            return 0
        add_abandoned(self.plan.schedule.folder, unfinished)
        batch = without_nesting(tq.kv_batch_get(keys=unfinished, partition_id=partition_id))
        tq.kv_clear(keys=unfinished, partition_id=partition_id)
        clear_without_prompt()
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        batch["uid"] = NonTensorStack(*(self._group_name(uuid.uuid4()) for _ in unfinished))
        return int(self._submit_batch_to_rollout(self._add_limits(batch)))


@register_trainer("verl_agent_partial")
@marking_phases
class PartialEpisodeTrainer(PartialTraining, PPOTrainerColocateAsync):
    """Trainer that shares its devices with the engines, which pause during an update while environments continue."""

    mode = "colocate_async"

    @override
    def get_llm_client(self) -> LLMServerClient:
        return self.llm_server_manager.get_client(client_cls=ResumingClient)


@register_trainer("verl_agent_separate")
@marking_phases
class SeparateEpisodeTrainer(PartialTraining, PPOTrainerSeparateAsync):
    """Trainer whose engines have devices of their own and pause only while they receive weights."""

    mode = "separate_async"

    @override
    def get_llm_client(self) -> LLMServerClient:
        return self.standalone_server_manager.get_client(client_cls=ResumingClient)


def prompt_tags() -> dict[str, dict[str, Any]]:
    """Return the tags of the training prompts in TransferQueue that no step has trained on, by uid."""
    items = (tq.kv_list(TRAIN) or {}).get(TRAIN, {})
    return {key: tag for key, tag in items.items() if tag.get("is_prompt", False)}


def without_nesting(batch: TensorDict) -> TensorDict:
    """Make nested columns of a batch plain ones, as they were dispatched.

    TransferQueue returns columns as nested tensors, which cannot be split among the agent-loop workers. All rows of a
    prompt's column have one shape.
    """
    for name in list(batch.keys()):
        column = batch.get(name)
        if isinstance(column, torch.Tensor) and column.is_nested:
            batch[name] = torch.stack(column.unbind())
    return batch


def clear_without_prompt() -> None:
    """Remove rows and reports of training episodes from TransferQueue whose prompt is not in it."""
    prompts = prompt_tags()
    for partition in (TRAIN, PARTITION.format(TRAIN)):
        items = (tq.kv_list(partition) or {}).get(partition, {})
        if ownerless := [key for key in items if group_of(key) not in prompts]:
            tq.kv_clear(keys=ownerless, partition_id=partition)
