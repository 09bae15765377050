"""Files of a run that pages link: images, and texts of an episode that a page shows in part."""

from html import escape

from nicegui import app
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from verl_agent.errors import ConfigError
from verl_agent.viewer.images import FOLDER, TYPES, find_image
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.pages.listing import whole_number
from verl_agent.viewer.parts import read_part
from verl_agent.viewer.state import OpenedSource, ViewerState
from verl_agent.visible import make_visible

PARTS = ("reply", "proposed", "observation")
"""Fields of a turn that are served as text."""


def add(state: ViewerState) -> None:
    """Register `/run/<key>/media/<path>` and `/run/<key>/episode/<id>/text?turn=<number>&part=<field>`.

    The parameter `message`, from 0, chooses a message of the prompt instead of a turn.
    """

    @app.get("/run/{key}/media/{path:path}")
    def image(key: str, path: str) -> Response:
        try:
            file = find_image(state.get(key), path)
        except ConfigError:
            file = None
        if file is None:
            return PlainTextResponse("No such image.\n", 404)
        return FileResponse(file, media_type=TYPES[file.suffix.lower()])

    @app.get("/run/{key}/episode/{number}/text")
    def text(key: str, number: str, request: Request) -> Response:
        query = {name: request.query_params.get(name, "") for name in ("turn", "part", "message")}
        try:
            turn = whole_number("turn", query["turn"] or "1", 1)
            part = read_part(state.get(key).index, whole_number("episode", number), turn)
            if query["message"]:
                found = part.record["messages"][whole_number("message", query["message"])]["content"]
            elif query["part"] in PARTS and turn in part.numbers:
                found = str(part.record["turns"][turn - part.first].get(query["part"]) or "")
            else:
                raise ConfigError(f"the episode has no such text. Allowed as part: {', '.join(PARTS)}.")
        except (ConfigError, IndexError) as error:
            return PlainTextResponse(f"{make_visible(str(error))}\n", 404)
        return PlainTextResponse(make_visible(found))


def image_url(opened: OpenedSource, path: str) -> str | None:
    """Return the URL of an image on a page; None if `find_image` does not find it."""
    return None if find_image(opened, path) is None else link_to(run_path(opened, f"/{FOLDER}/{path}"))


def link_to_text(episode: str, place: str, rest: str) -> str:
    """Return the link to the whole text at a place of an episode, which a page shows in part.

    Args:
        episode: URL of the page of the episode.
    """
    return f'<a href="{escape(f"{episode}/text?{place}")}">{len(rest):,} more characters</a>'
