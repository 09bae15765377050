"""verl's FSDP engines, with attention to packed rows, and resume with another number of ranks or another `fsdp_size`.

Each rank of verl 0.9.1 reads the file of its own rank, whose name has the number of ranks. Here it maps the files of
all earlier ranks into memory and copies the rows of its own shards: of weights and of the optimizer's moments. It
needs no disk space and reads only its rows. Every machine must see all files.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.tensor import DTensor
from typing_extensions import override
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.fsdp_utils import fsdp_version
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead, FSDPEngineWithValueHead

from verl_agent.platform.packed_attention import use_packed_attention
from verl_agent.platform.shard_files import ShardFiles


class ReshardingEngine(FSDPEngine):
    """Part of an engine that loads checkpoints of any number of ranks."""

    checkpoint_manager: FSDPCheckpointManager

    @override
    def _build_module(self) -> Any:
        """Packed rows get an attention of their own, see `packed_attention`."""
        module = super()._build_module()
        if self.use_remove_padding:
            use_packed_attention(module)
        return module

    @override
    def initialize(self) -> None:
        """Verl's class of the checkpoint manager is fixed in that method."""
        super().initialize()
        verls = self.checkpoint_manager
        self.checkpoint_manager = ReshardingCheckpointManager(
            model=verls.model,
            optimizer=verls.optimizer,
            lr_scheduler=verls.lr_scheduler,
            processing_class=verls.processing_class,
            checkpoint_config=verls.checkpoint_config,
            trust_remote_code=verls.trust_remote_code,
        )


class ReshardingLanguageEngine(ReshardingEngine, FSDPEngineWithLMHead):
    """Engine of a policy."""


class ReshardingValueEngine(ReshardingEngine, FSDPEngineWithValueHead):
    """Engine of a critic."""


class ReshardingCheckpointManager(FSDPCheckpointManager):
    """Checkpoint manager of verl that also loads checkpoints of another number or mesh of FSDP2 ranks."""

    @override
    def load_checkpoint(
        self, local_path: str | None, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        shards = ShardFiles.read(Path(local_path)) if local_path is not None else None
        if shards is None or fsdp_version(self.model) == 1 or self._has_mesh_of(shards):
            super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
            return
        if self.should_load_model:
            self._load_model(shards)
        if self.should_load_optimizer:
            self.optimizer.load_state_dict(optimizer_state(_mapped(shards.files("optimizer")), self.optimizer))
        if self.should_load_extra:
            self._load_extra(shards)
        torch.distributed.barrier()

    def _has_mesh_of(self, shards: ShardFiles) -> bool:
        if shards.ranks != self.world_size:
            return False
        own = shards.file("model", self.rank)
        if not own.is_file():
            return True  # nothing to compare: this checkpoint is without weights
        (written,) = _mapped([own])
        return mesh_shape(written.values()) == mesh_shape(self.model.state_dict().values())

    def _load_model(self, shards: ShardFiles) -> None:
        written, present = _mapped(shards.files("model")), self.model.state_dict()
        state = {name: own_part(name, [one[name] for one in written], present[name]) for name in written[0]}
        self.model.load_state_dict(state, strict=not self.is_lora_only_state_dict(state))

    def _load_extra(self, shards: ShardFiles) -> None:
        """Load the scheduler and random state of the same rank; further ranks share those of the first ones."""
        extra = torch.load(shards.file("extra", self.rank % shards.ranks), map_location="cpu", weights_only=False)
        self.load_rng_state(extra["rng"])
        if extra["lr_scheduler"] is not None and self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(extra["lr_scheduler"])


def mesh_shape(tensors: Iterable[Any]) -> tuple[int, ...] | None:
    """Return the shape of the device mesh of the first DTensor; None without DTensors."""
    return next((tuple(one.device_mesh.mesh.shape) for one in tensors if isinstance(one, DTensor)), None)


def optimizer_state(written: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state dict of an optimizer with this rank's part of each moment.

    Args:
        written: state dicts of all ranks that wrote the checkpoint.
        optimizer: optimizer of this rank, whose parameters have the order of theirs.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {
            name: own_part(
                f"optimizer state {index}.{name}", [one["state"][index][name] for one in written], parameters[index]
            )
            for name in of_parameter
        }
        for index, of_parameter in written[0]["state"].items()
    }
    return {"state": state, "param_groups": written[0]["param_groups"]}


def own_part(name: str, written: Sequence[Any], like: Tensor) -> Any:
    """Return this rank's part of a tensor, a copy.

    Args:
        written: the values of all ranks that wrote it: DTensors sharded by rows, perhaps with replicas. Another value,
            such as a number of steps or a whole tensor of a single rank, is equal on all of them.
        like: tensor of this rank with the wanted shards: a DTensor sharded by rows, or a whole tensor.

    Raises:
        ValueError: the rows of the shards do not add up to those of `like`.
    """
    first = written[0]
    if not isinstance(first, Tensor):
        return first
    if not isinstance(first, DTensor) and first.shape != like.shape:
        return first.clone()
    shards = first.device_mesh.mesh.shape[-1] if isinstance(first, DTensor) else 1  # others are replicas
    pieces = [_local(one) for one in written[:shards]]
    own = _local(like)
    if (count := sum(len(piece) for piece in pieces)) != len(like):
        raise ValueError(f"{name}: the checkpoint has {count} rows, the model {len(like)}.")
    rows, start, position = torch.empty(own.shape, dtype=first.dtype), _first_row(like), 0
    for piece in pieces:
        low, high = max(start, position), min(start + len(rows), position + len(piece))
        if low < high:
            rows[low - start : high - start] = piece[low - position : high - position]
        position += len(piece)
    if not isinstance(like, DTensor):
        return rows
    return DTensor.from_local(
        rows.to(own.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _first_row(like: Tensor) -> int:
    """Return the row of the whole tensor with which this rank's shard begins; FSDP2 divides rows as `torch.chunk`."""
    if not isinstance(like, DTensor):
        return 0
    mesh = like.device_mesh
    rank, ranks = int(mesh.get_coordinate()[-1]), int(mesh.mesh.shape[-1])
    return min(rank * -(-len(like) // ranks), len(like))


def _local(tensor: Tensor) -> Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _mapped(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the contents of files whose tensors stay on disk until they are read."""
    return [torch.load(str(file), map_location="cpu", mmap=True, weights_only=False) for file in files]
