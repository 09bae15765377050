"""Image files of a run, none outside of the run's folder `media`."""

import base64
from dataclasses import dataclass
from pathlib import Path

from verl_agent.viewer.state import OpenedSource

FOLDER = "media"
"""Folder of the images in that of a run or an evaluation."""
TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"}
"""Types of files that are served, by suffix. SVG is left out: opened as a page, it could run a script."""

MAX_EMBEDDED = 3_000_000
"""Bytes of images in one exported page; a browser needs about four thirds of them as text."""


def find_image(opened: OpenedSource, path: str) -> Path | None:
    """Return an image of a source; None if it does not exist, lies outside of `FOLDER` or is of another type."""
    try:
        root = (opened.source.folder / FOLDER).resolve()
        file = (root / path).resolve()
        return file if file.is_relative_to(root) and file.is_file() and file.suffix.lower() in TYPES else None
    except (OSError, ValueError):  # for example a NUL byte, or a name that is too long
        return None


@dataclass(slots=True)
class ImageBudget:
    """Images of one exported page, up to a number of bytes.

    Attributes:
        left: bytes that further images may have.
        left_out: number of images that exceeded it.
    """

    left: int = MAX_EMBEDDED
    left_out: int = 0

    def embed(self, opened: OpenedSource, path: str) -> str | None:
        """Return an image of a source as a `data:` URL; None if it does not fit, or `find_image` does not find it."""
        file = find_image(opened, path)
        if file is None:
            return None
        if (size := file.stat().st_size) > self.left:
            self.left_out += 1
            return None
        self.left -= size
        return f"data:{TYPES[file.suffix.lower()]};base64,{base64.b64encode(file.read_bytes()).decode()}"
