"""Command `verl-agent view`: open runs, evaluations and files of records in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.errors import ConfigError


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs or evaluations, or files of episode records."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen at; one beyond this machine gets a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 for any free one.")] = 8080,
) -> None:
    """Show what agents do: runs, episodes, groups and tokens, in a browser, also while a run trains."""
    try:
        from verl_agent.viewer.server import ServerSettings, serve
    except ModuleNotFoundError as error:
        fail(f"the viewer needs the package {error.name}. Install it: pip install 'verl-agent[viewer]'")
    from verl_agent.viewer.state import ViewerState

    try:
        serve(
            ViewerState(paths),
            ServerSettings(host, port),
            lambda url: print_line(f"Open {url}  (Ctrl-C ends the viewer)"),
        )
    except ConfigError as error:
        fail(str(error))
