"""Folder with the screenshots of one episode's steps and the list of its actions."""

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from verl_agent.types import Box, Media


class ScreenshotFolder:
    """Folder with the screenshots of one episode.

    Its name holds the task and the second (UTC) at which the episode began, as `started_at` in the episode's record.
    `actions.txt` has one line for each step, which tells apart episodes of the same task that began together.
    """

    def __init__(self, root: Path, task: str) -> None:
        started_at = datetime.now(UTC)
        name = re.sub(r"[^\w.-]", "_", task)
        self.folder = root / f"{name}-{started_at:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        self.folder.mkdir(parents=True)

    def record_action(self, step: int, action: str) -> None:
        """Append the action of a step to `actions.txt`; the first step is 1."""
        with (self.folder / "actions.txt").open("a", encoding="utf-8") as file:
            file.write(f"{step:03} {' '.join(action.split())}\n")

    def path(self, step: int) -> Path:
        """Return the path of the screenshot taken after a step; step 0 is the start."""
        return self.folder / f"{step:03}.png"

    def media(self, step: int, action: str, box: Box | None) -> list[Media]:
        """Return the screenshots before and after a step that were written.

        Args:
            box: place of the element that the action used, on the screenshot before it.
        """
        earlier = [one for one in range(step) if self.path(one).is_file()]
        pair = [Media(self._name(earlier[-1]), f"before: {action[:100]}", box)] if earlier else []
        return [*pair, Media(self._name(step), "after")] if self.path(step).is_file() else pair

    def _name(self, step: int) -> str:
        return f"{self.folder.name}/{self.path(step).name}"
