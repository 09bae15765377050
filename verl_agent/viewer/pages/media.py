"""Image files of a run, served to the browser."""

from nicegui import app
from starlette.responses import FileResponse, PlainTextResponse, Response

from verl_agent.errors import ConfigError
from verl_agent.viewer.images import TYPES, find_image
from verl_agent.viewer.state import ViewerState


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
