"""Command `verl-agent view`: open runs, evaluations and files of records in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.errors import counted


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs or evaluations, or files of episode records."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 for any free one.", min=0, max=65535)] = 8080,
    export: Annotated[
        Path | None,
        typer.Option(help="Write a file instead: .html opens offline, .eval is Inspect's log, or .parquet, .jsonl."),
    ] = None,
    where: Annotated[
        str, typer.Option(help="Filter of the exported episodes, as in the viewer's URL: step=3..7&success=no")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most exported episodes of each run (.html: 500 unless given).")
    ] = None,
) -> None:
    """Show what agents do: runs, episodes, groups and tokens, in a browser, also while a run trains."""
    if export is not None:
        from verl_agent.viewer.export.write import export_episodes

        print_line(f"Wrote {counted(export_episodes(paths, export, where, limit), 'episode')} to {export}.")
        return
    if where or limit is not None:
        fail("--where and --limit choose episodes to export. Add --export FILE, or filter in the viewer.")
    from verl_agent.viewer.server import serve_pages
    from verl_agent.viewer.state import ViewerState

    serve_pages(ViewerState(paths), host, port, lambda url: print_line(f"Open {url}  (Ctrl-C ends the viewer)"))
