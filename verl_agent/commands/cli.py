"""The command line `verl-agent`."""

import json
import logging
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verl_agent.commands import doctor as machine
from verl_agent.commands.new_env import write_package
from verl_agent.envs.registry import make_env, registered
from verl_agent.envs.testing.check import check_adapter
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.system.checks import Status

app = typer.Typer(
    help="Multi-turn reinforcement learning of language-model agents on unmodified verl.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

COMMANDS = "verl_agent.commands"
"""Entry points with which a package adds commands: `name = module:app`, a `typer.Typer`."""
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _recipe(example: str) -> Any:
    """The argument of a command that runs a recipe."""
    return typer.Argument(help=f"A recipe's YAML file, such as {example}.", metavar="RECIPE")


@app.command(context_settings=PASS_ON)
def train(context: typer.Context, recipe: Annotated[Path, _recipe("recipes/textcraft/grpo_cpu.yaml")]) -> None:
    """Train by reinforcement learning, or go on where a run stopped. Further arguments override the recipe."""
    _run("verl_agent.commands.train", recipe, context.args)


@app.command(context_settings=PASS_ON)
def sft(context: typer.Context, recipe: Annotated[Path, _recipe("recipes/textcraft/sft_cpu.yaml")]) -> None:
    """Learn from an oracle's or recorded episodes. Further arguments override the recipe."""
    _run("verl_agent.commands.sft", recipe, context.args)


@app.command(context_settings=PASS_ON)
def dpo(context: typer.Context, recipe: Annotated[Path, _recipe("recipes/textcraft/dpo_cpu.yaml")]) -> None:
    """Learn from pairs of recorded episodes, a better and a worse one. Further arguments override the recipe."""
    _run("verl_agent.commands.dpo", recipe, context.args)


@app.command(context_settings=PASS_ON)
def evolve(context: typer.Context, recipe: Annotated[Path, _recipe("recipes/textcraft/evolve_cpu.yaml")]) -> None:
    """Explore, keep what was rewarded, learn from it, and repeat. Further arguments override the recipe."""
    _run("verl_agent.commands.evolve", recipe, context.args)


@app.command("eval", context_settings=PASS_ON)
def evaluate(context: typer.Context, recipe: Annotated[Path, _recipe("recipes/textcraft/eval_cpu.yaml")]) -> None:
    """Evaluate a model on held-out tasks: model.path=RUN, a checkpoint, a hub id, oracle. More overrides may follow."""
    _run("verl_agent.commands.evaluate", recipe, context.args)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run or of one checkpoint.")],
    into: Annotated[Path, typer.Option(help="Folder to write, new or empty.")],
    step: Annotated[int | None, typer.Option(help="Training step of the checkpoint; the latest if not given.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The checkpoint that validated best.")] = False,
) -> None:
    """Write the model of a run in Hugging Face format: config, weights and tokenizer."""
    from verl_agent.commands.export import export as write

    try:
        Console().print(f"model: {write(run, into, step, best)}", highlight=False, soft_wrap=True)
    except ConfigError as error:
        _fail(str(error))


@app.command()
def doctor(
    model: Annotated[Path | None, typer.Option(help="A model folder that shall be checked too.")] = None,
) -> None:
    """Show what this machine can run and the command that installs whatever is missing."""
    results = machine.diagnose(Path(), model)
    machine.render(results, Console())
    raise typer.Exit(code=int(any(result.status is Status.MISSING for result in results)))


@app.command()
def envs() -> None:
    """List the environments that are installed, with their splits and the package that registers them."""
    table = Table("environment", "splits", "package")
    for name, package in sorted(registered().items()):
        try:
            splits = ", ".join(make_env(name).splits)
        except ConfigError as error:
            splits = str(error)
        table.add_row(name, escape(splits), package)
    Console().print(table)


@app.command("check-env")
def check_env(
    name: Annotated[str, typer.Argument(help="Registered name of the environment.")],
    options: Annotated[str, typer.Option(help="Keyword arguments of the adapter, as JSON.")] = "{}",
    items: Annotated[int, typer.Option(help="Number of tasks of each split to play.", min=1)] = 4,
    seconds: Annotated[float, typer.Option(help="Seconds after which a check skips further tasks.", min=0)] = 10.0,
    replay: Annotated[
        bool, typer.Option("--replay/--moves-by-itself", help="Compare texts of replayed episodes, or only rewards.")
    ] = True,
) -> None:
    """Check an environment against the contract, and print what to change."""
    console = Console()

    def show(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        keywords = _json(options)
        adapter = type(make_env(name, keywords))
        report = check_adapter(adapter, keywords, items, replay_exact=replay, name=name, budget_s=seconds, on_line=show)
    except ConfigError as error:
        _fail(str(error))
    if report.violations:
        show(f"{len(report.violations)} to change.")
    else:
        show(f"{name} keeps the contract.")
    raise typer.Exit(code=int(bool(report.violations)))


@app.command("new-env")
def new_env(
    name: Annotated[str, typer.Argument(help="Name of the environment and of its Python package.")],
    into: Annotated[Path, typer.Option(help="Folder in which the package's folder is made.")] = Path(),
) -> None:
    """Write an environment as a package of its own, with a small game, recipes, data sheet and tests."""
    try:
        folder = write_package(name, into)
    except ConfigError as error:
        _fail(str(error))
    console = Console()
    console.print(f"Wrote {folder}, a game that trains as it is. Next:", markup=False, soft_wrap=True)
    for command in (f"cd {folder}", "pip install -e .", f"verl-agent check-env {name}", "pytest"):
        console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
    console.print("README.md has the commands that train it; adapter.py is what to replace.", markup=False)


@app.command()
def serve(  # noqa: PLR0913 - one for each option
    env: Annotated[str, typer.Argument(help="Registered name of the environment.")],
    host: Annotated[str, typer.Option(help="Address to listen at; others than this machine's own need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.", min=0, max=65535)] = 8000,
    hosts: Annotated[int, typer.Option(help="Most processes that sessions live in.", min=1)] = 2,
    token: Annotated[
        str | None, typer.Option(envvar="VERL_AGENT_TOKEN", show_envvar=True, help="What clients must send.")
    ] = None,
    options: Annotated[str, typer.Option(help="Keyword arguments of the adapter, as JSON.")] = "{}",
    split: Annotated[str, typer.Option(help="What the numbers of items count in.")] = "train",
    timeout: Annotated[float, typer.Option(help="Seconds that one call into the environment may take.")] = 60.0,
    sessions: Annotated[int, typer.Option(help="Sessions open at once.", min=1)] = 1024,
    idle: Annotated[float, typer.Option(help="Seconds after which a session that nobody calls is closed.")] = 1800.0,
    drain: Annotated[float, typer.Option(help="Seconds that episodes have to end after SIGTERM.")] = 30.0,
    venv: Annotated[
        Path | None,
        typer.Option(help="Serve from a virtual environment in this folder, made for this environment's own packages."),
    ] = None,
) -> None:
    """Serve an environment over HTTP, for this package on other machines and for AgentGym's clients."""
    console = Console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        if venv is not None:
            _serve_from(venv, env, say)
        from verl_agent.commands.serve import ServeSettings
        from verl_agent.commands.serve import serve as run
        from verl_agent.envs.http.limits import Limits

        limits = Limits(sessions=sessions, idle_s=idle, drain_s=drain)
        run(ServeSettings(env, _json(options), split, host, port, token, hosts, timeout, limits), say)
    except ConfigError as error:
        _fail(str(error))
    except ImportError as error:
        _fail(f"serving needs packages that are missing: {error}. Install them: pip install 'verl-agent[serve]'")


def _serve_from(folder: Path, env: str, say: Callable[[str], None]) -> NoReturn:
    """Become the same command, run by the virtual environment in `folder`, which is made if need be."""
    from verl_agent.system.venv import clean_environment, make, without_venv

    make(folder, env, say)
    program = str(folder.resolve() / "bin" / "verl-agent")
    sys.stdout.flush()
    os.execve(program, [program, *without_venv(sys.argv[1:])], clean_environment())


def _json(options: str) -> dict[str, Any]:
    """The value of `--options`."""
    try:
        keywords = json.loads(options)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--options is not JSON: {error}") from error
    if not isinstance(keywords, dict):
        raise ConfigError(f"--options must be a JSON object, such as '{{}}', got {options}.")
    return keywords


def _run(module: str, recipe: Path, overrides: list[str]) -> None:
    """Become `python -m <module>` with Hydra's arguments for the recipe."""
    if not recipe.is_file():
        known = sorted(str(path) for path in Path("recipes").rglob("*.yaml"))
        _fail(f"recipe {str(recipe)!r} does not exist. {did_you_mean(str(recipe), known)[:300]}")
    place = ["--config-dir", str(recipe.resolve().parent), "--config-name", recipe.stem]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *place, *overrides])


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code=2)


def _add_commands() -> None:
    """Add what packages register; one that does not import is left out and named."""
    for entry in sorted(entry_points(group=COMMANDS), key=lambda entry: entry.name):
        try:
            app.add_typer(entry.load(), name=entry.name)
        except ImportError as error:
            logging.getLogger(__name__).warning("command %r (%s) does not import: %s", entry.name, entry.value, error)


_add_commands()
