"""The command line `verl-agent`."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from verl_agent import doctor as machine
from verl_agent.envs.check import check_adapter
from verl_agent.envs.registry import load_adapter
from verl_agent.errors import ConfigError

app = typer.Typer(
    help="Multi-turn reinforcement learning of language-model agents on unmodified verl.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
Recipe = Annotated[
    Path, typer.Argument(help="A recipe's YAML file, such as recipes/textcraft/grpo_cpu.yaml.", metavar="RECIPE")
]


@app.command(context_settings=PASS_ON)
def train(context: typer.Context, recipe: Recipe) -> None:
    """Train by reinforcement learning, or go on where a run stopped. Further arguments override the recipe."""
    _run("verl_agent.train", recipe, context.args)


@app.command(context_settings=PASS_ON)
def sft(context: typer.Context, recipe: Recipe) -> None:
    """Warm-start a model on an oracle's episodes. Further arguments override the recipe."""
    _run("verl_agent.sft", recipe, context.args)


@app.command("eval", context_settings=PASS_ON)
def evaluate(context: typer.Context, recipe: Recipe) -> None:
    """Evaluate a checkpoint on held-out tasks. Further arguments override the recipe."""
    _run("verl_agent.evaluate", recipe, context.args)


@app.command()
def doctor(
    model: Annotated[Path | None, typer.Option(help="A model folder that shall be checked too.")] = None,
) -> None:
    """Say what this machine can run, and which command mends each thing missing."""
    findings = machine.diagnose(Path(), model)
    machine.render(findings, Console())
    raise typer.Exit(code=int(any(finding.status is machine.Status.MISSING for finding in findings)))


@app.command("check-env")
def check_env(
    name: Annotated[str, typer.Argument(help="Registered name of the environment.")],
    options: Annotated[str, typer.Option(help="Keyword arguments of the adapter, as JSON.")] = "{}",
    items: Annotated[int, typer.Option(help="Tasks that are played.", min=1)] = 4,
) -> None:
    """Play an environment against its contract, and say what to change."""
    try:
        keywords = json.loads(options)
        report = check_adapter(load_adapter(name), keywords, items=items)
    except json.JSONDecodeError as error:
        _fail(f"--options is not JSON: {error}")
    except ConfigError as error:
        _fail(str(error))
    Console().print(str(report), highlight=False)
    raise typer.Exit(code=int(bool(report.findings)))


def _run(module: str, recipe: Path, overrides: list[str]) -> None:
    """Become `python -m <module>` with Hydra's arguments for the recipe."""
    if not recipe.is_file():
        known = sorted(str(path) for path in Path("recipes").glob("*/*.yaml"))
        _fail(f"recipe {str(recipe)!r} does not exist. Here are: {', '.join(known) or 'none below ./recipes'}.")
    place = ["--config-dir", str(recipe.resolve().parent), "--config-name", recipe.stem]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *place, *overrides])


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"[red]error:[/] {message}", highlight=False, soft_wrap=True)
    raise typer.Exit(code=2)
