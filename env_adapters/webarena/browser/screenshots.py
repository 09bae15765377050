"""Pictures of an episode's steps, in a folder of its own that can be told by its name and by what was done."""

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path


class Pictures:
    """Where the pictures of one episode go.

    Its folder is called after the task and the second, in UTC, at which the episode began, as its record says
    (`started_at`). Of samples that began together, `actions.txt` says which is which: it has a line for each step.

    Args:
        root: folder of all episodes' pictures.
        task: id of the item.
    """

    def __init__(self, root: Path, task: str) -> None:
        begun = datetime.now(UTC)
        name = re.sub(r"[^\w.-]", "_", task)
        self.folder = root / f"{name}-{begun:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        self.folder.mkdir(parents=True)

    def note(self, step: int, action: str) -> None:
        """A step, from 1, takes this action."""
        with (self.folder / "actions.txt").open("a", encoding="utf-8") as file:
            file.write(f"{step:03} {' '.join(action.split())}\n")

    def path(self, step: int) -> Path:
        """Where the picture of what a step led to goes; step 0 is the start."""
        return self.folder / f"{step:03}.png"
