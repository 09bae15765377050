"""The command `verl-agent sites up | down | status | reset`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from env_adapters.web_sites.folders import Home, sites_home

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Web sites on this machine for the web tasks: a shop with its administration, a forum, a code host.",
)
console = Console(soft_wrap=True)

Folder = Annotated[Path | None, typer.Option(help="Folder of the sites. Default: $VERL_AGENT_SITES, as for episodes.")]


@app.command()
def up(
    folder: Folder = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the generated data. Default: the one that the tasks require.")
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port of the shop; the other sites use the next ports. 0: any free ports.", min=0)
    ] = 7870,
) -> None:
    """Install, fill and start the sites."""
    from env_adapters.web_sites.control import start_sites
    from env_adapters.web_sites.world import DEFAULT_SEED

    wanted = DEFAULT_SEED if seed is None else seed
    sites = start_sites(home(folder), wanted, port, lambda line: console.print(line, highlight=False))
    for name, port in sites.ports.items():
        console.print(f"{name:6} http://127.0.0.1:{port}", highlight=False)


@app.command()
def down(folder: Folder = None) -> None:
    """Stop the sites."""
    from env_adapters.web_sites.control import stop_sites

    console.print("The sites have stopped." if stop_sites(home(folder)) else "No sites were running.")


@app.command()
def status(folder: Folder = None) -> None:
    """Show response time, processes and memory of each site."""
    from env_adapters.web_sites.control import health_of_sites
    from env_adapters.web_sites.siteset import SiteSet

    sites_health = health_of_sites(home(folder))
    table = Table("site", "port", "answers in", "processes", "memory")
    for health in sites_health:
        answer = "no answer" if health.answer_ms is None else f"{health.answer_ms:.0f} ms"
        table.add_row(health.name, str(health.port), answer, str(health.processes), f"{health.memory_mb:.0f} MiB")
    console.print(table)
    sites = SiteSet.running(home(folder).folder)
    copies = len(list(sites.home.copies.iterdir()))
    console.print(f"seed {sites.seed}, {copies} copies, process {sites.pid}", highlight=False)
    raise typer.Exit(code=int(any(health.answer_ms is None for health in sites_health)))


@app.command()
def reset(folder: Folder = None) -> None:
    """Remove all copies of the sites' state, including that of visitors."""
    from env_adapters.web_sites.control import remove_copies

    console.print(f"{remove_copies(home(folder))} copies were removed.", highlight=False)


def home(folder: Path | None) -> Home:
    """Return the folder of the sites."""
    return Home((folder or sites_home()).resolve())
