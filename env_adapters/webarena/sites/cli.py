"""The command `verl-agent sites up | down | status | reset`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from env_adapters.webarena.sites import control
from env_adapters.webarena.sites.folders import Home, sites_home
from env_adapters.webarena.sites.siteset import SiteSet
from env_adapters.webarena.sites.world import DEFAULT_SEED
from verl_agent.errors import ConfigError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Real web sites on this machine for the web tasks: a shop with its administration, a forum, a code host.",
)
console = Console(soft_wrap=True)

Folder = Annotated[
    Path | None,
    typer.Option(help="Where the sites keep what they make; without it $VERL_AGENT_SITES, which episodes look at too."),
]


@app.command()
def up(
    folder: Folder = None,
    seed: Annotated[int, typer.Option(help="Of the world; the tasks are about the default one.")] = DEFAULT_SEED,
    port: Annotated[int, typer.Option(help="The shop's; the others follow. 0 for any.", min=0)] = control.FIRST_PORT,
) -> None:
    """Install what the sites need, fill them, and start them."""
    with explained():
        sites = control.up(home(folder), seed, port, lambda line: console.print(line, highlight=False))
        for name, port in sites.ports.items():
            console.print(f"{name:6} http://127.0.0.1:{port}", highlight=False)


@app.command()
def down(folder: Folder = None) -> None:
    """End the sites."""
    with explained():
        console.print("The sites have ended." if control.down(home(folder)) else "No sites ran.")


@app.command()
def status(folder: Folder = None) -> None:
    """Say how the sites are."""
    with explained():
        found = control.status(home(folder))
        table = Table("site", "port", "answers in", "processes", "memory")
        for one in found:
            answer = "no answer" if one.answer_ms is None else f"{one.answer_ms:.0f} ms"
            table.add_row(one.name, str(one.port), answer, str(one.processes), f"{one.memory_mb:.0f} MiB")
        console.print(table)
        sites = SiteSet.running(home(folder).folder)
        copies = len(list(sites.home.copies.iterdir()))
        console.print(f"seed {sites.seed}, {copies} copies, process {sites.pid}", highlight=False)
    raise typer.Exit(code=int(any(one.answer_ms is None for one in found)))


@app.command()
def reset(folder: Folder = None) -> None:
    """Remove all copies of the sites' state, the visitors' too."""
    with explained():
        console.print(f"{control.reset(home(folder))} copies were removed.", highlight=False)


def home(folder: Path | None) -> Home:
    """The folder that is meant."""
    return Home((folder or sites_home()).resolve())


@contextmanager
def explained() -> Iterator[None]:
    """End the command with a message instead of a traceback where something has to be changed."""
    try:
        yield
    except ConfigError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(2) from error
