"""Image files of a run: served to the browser, and none outside of the run's folder `media`."""

from pathlib import Path

from nicegui import app
from starlette.responses import FileResponse, PlainTextResponse, Response

from verl_agent.errors import ConfigError
from verl_agent.viewer.state import OpenedSource, ViewerState

FOLDER = "media"
"""Folder of the images in that of a run or an evaluation."""
TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"}
"""Types of files that are served, by suffix. SVG is left out: opened as a page, it could run a script."""


def find_image(opened: OpenedSource, path: str) -> Path | None:
    """Return an image of a source; None if it does not exist, lies outside of `FOLDER` or is of another type."""
    try:
        root = (opened.source.folder / FOLDER).resolve()
        file = (root / path).resolve()
        return file if file.is_relative_to(root) and file.is_file() and file.suffix.lower() in TYPES else None
    except (OSError, ValueError):  # for example a NUL byte, or a name that is too long
        return None


def add(state: ViewerState) -> None:
    """Register `/run/<key>/media/<path>`."""

    @app.get("/run/{key}/media/{path:path}")
    def image(key: str, path: str) -> Response:
        try:
            file = find_image(state.get(key), path)
        except ConfigError:
            file = None
        if file is None:
            return PlainTextResponse("No such image.\n", 404)
        return FileResponse(file, media_type=TYPES[file.suffix.lower()])
