"""Files of a checkpoint that verl's FSDP engine wrote: one of each kind for each rank.

verl 0.9.1, utils/checkpoint/fsdp_checkpoint_manager.py names them by the number of ranks. A later save of the same step
by another number of ranks leaves earlier files, so `fsdp_config.json` says which of them count.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KINDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
"""First part of the name of a file, by its entry in `checkpoint.load_contents`."""
CONFIG = "fsdp_config.json"


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Shards of one model in a checkpoint.

    Attributes:
        folder: folder of the model in the checkpoint, such as `global_step_3/actor`.
        ranks: number of ranks that wrote them.
        version: 1 for FSDP1, 2 for FSDP2, 0 for one rank without FSDP.
    """

    folder: Path
    ranks: int
    version: int

    @classmethod
    def read(cls, folder: Path) -> "ShardFiles | None":
        """Return the shards in a folder; None if verl's FSDP engine wrote none there."""
        config = folder / CONFIG
        if not config.is_file():
            return None
        values = json.loads(config.read_text(encoding="utf-8"))
        return cls(folder, int(values["world_size"]), int(values["FSDP_version"]))

    def file(self, content: str, rank: int) -> Path:
        """Return the file of a rank; `content` is a key of `KINDS`."""
        return self.folder / f"{KINDS[content]}_world_size_{self.ranks}_rank_{rank}.pt"

    def files(self, content: str) -> list[Path]:
        """Return the files of all ranks in their order."""
        return [self.file(content, rank) for rank in range(self.ranks)]

    def missing(self, contents: Iterable[str]) -> list[Path]:
        """Return the files that do not exist; `contents` are keys of `KINDS`."""
        return [file for content in contents for file in self.files(content) if not file.is_file()]
