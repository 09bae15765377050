"""URLs of the viewer: pages of a run, parameters, and the present page with other parameters."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from nicegui import ui
from starlette.requests import Request

from verl_agent.viewer.state import OpenedSource


def link_to(path: str, parameters: Mapping[str, object] | None = None) -> str:
    """Return a URL of the viewer; empty parameters are left out.

    Args:
        path: path of a page, quoted; see `run_path`.
        parameters: values by name; of a list, each value becomes a parameter.
    """
    given = {name: value for name, value in (parameters or {}).items() if value not in (None, "", [])}
    query = urlencode(given, doseq=True, errors="replace")
    return path + (f"?{query}" if query else "")


def run_path(opened: OpenedSource, rest: str = "") -> str:
    """Return the path of a page of a source, quoted: names of runs and of files may have characters such as `#`."""
    return quote(f"/run/{opened.key}{rest}", errors="replace")


def changed_url(request: Request, **changes: object) -> str:
    """Return the URL of a request with other values of some parameters; an empty value removes one."""
    query = request.query_params
    return link_to(
        quote(request.scope["path"], errors="replace"), {name: query.getlist(name) for name in query} | changes
    )


def here(**changes: object) -> str:
    """Return the URL of the page that is shown with other values of some parameters; see `changed_url`."""
    return changed_url(ui.context.client.request, **changes)


def show_in_url(**changes: object) -> None:
    """Give parameters of the URL other values without loading the page; see `changed_url`."""
    ui.run_javascript(f"history.replaceState(null, '', {here(**changes)!r})")
