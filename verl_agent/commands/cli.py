"""The command line `verl-agent`: every command and its options."""

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from click import UsageError
from typer.core import TyperGroup

from verl_agent.commands.control import control
from verl_agent.commands.environments import check_agent_command, check_env, check_estimator_command, envs, export_env
from verl_agent.commands.launch import launch
from verl_agent.commands.new_env import write_package
from verl_agent.commands.plan import plan
from verl_agent.commands.play import play_game
from verl_agent.commands.quickstart import quickstart
from verl_agent.commands.recipes import check_recipe, recipes
from verl_agent.commands.records import app as records
from verl_agent.commands.results import failures, judge_agreement, leaderboard, scaling
from verl_agent.commands.study import app as study
from verl_agent.commands.suite import suite
from verl_agent.commands.terminal import explain_missing, fail, print_line, read_json
from verl_agent.commands.view import view
from verl_agent.commands.what_if import what_if
from verl_agent.envs.machine.proxies import settle_proxies
from verl_agent.errors import AgentError
from verl_agent.platform.versions import require_modules
from verl_agent.terminal import Console, guard_output
from verl_agent.visible import make_visible


class Commands(TyperGroup):
    """Commands that end with exit code 2 after an error of this package or without a package, with 130 after Ctrl-C."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Guard the output of this process, and show arguments that are refused, such as names of files, as text."""
        guard_output()
        with _visible_usage():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """See Click's Group."""
        settle_proxies()
        try:
            with _full_disk(), _visible_usage():
                return super().invoke(ctx)
        except AgentError as error:
            fail(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(code=130) from None
        except ModuleNotFoundError as error:
            message = explain_missing(ctx.invoked_subcommand or "", error)
            if message is None:
                raise
            fail(message)


@contextmanager
def _full_disk() -> Iterator[None]:
    """Explain a full disk below the results or below the output, which is written before the command ends."""
    try:
        yield
        sys.stdout.flush()
    except OSError:
        from verl_agent.runs.console import explaining_full_disk

        with explaining_full_disk():
            raise


@contextmanager
def _visible_usage() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(make_visible(error.format_message()), error.ctx) from error


app = typer.Typer(
    cls=Commands,
    help="Multi-turn reinforcement learning of language-model agents on unmodified verl.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

COMMANDS = "verl_agent.commands"
"""Entry point group with which a package adds commands: `name = module:app`, a `typer.Typer`."""
RECIPE_COMMANDS = (
    ("train", "train", "grpo_cpu", "Train by reinforcement learning, or resume a run from its last checkpoint."),
    ("sft", "sft", "sft_cpu", "Train on episodes of an oracle or on recorded episodes."),
    ("dpo", "dpo", "dpo_cpu", "Train on pairs of recorded episodes, a better and a worse one (DPO)."),
    ("evolve", "evolve", "evolve_cpu", "Explore, keep the rewarded episodes, train on them, and repeat (AgentEvol)."),
    (
        "eval",
        "evaluate",
        "eval_cpu",
        "Evaluate a policy on held-out tasks. model.path names it: a run, a checkpoint, a model folder, a hub id, "
        "oracle, random or python:MODULE:NAME. model.api.kind and model.api.name name a model behind an API.",
    ),
)
"""Commands that run a recipe: name, module, example recipe, help."""
RECIPE_HELP = """

KEY=VALUE arguments after the recipe override its settings. --cfg job prints the composed config and exits, --explain
KEY the type, the default and the meaning of a setting. The page "Settings" of the documentation lists all.
"""


EXPLAIN: Any = typer.Option(help="Explain the setting with this dotted key, and exit.", metavar="KEY")


def _add_recipe_command(name: str, module: str, example: str, help_text: str) -> None:
    """Add a command that replaces this process by `python -m <module>` with Hydra's arguments for the recipe."""
    base = f"agent_{'base' if name == 'train' else name}"
    metavar: Any = typer.Argument(
        help=f"YAML file of a recipe, such as recipes/textcraft/{example}.yaml.", metavar="RECIPE"
    )

    def command(
        context: typer.Context, recipe: Annotated[Path, metavar], explain: Annotated[str | None, EXPLAIN] = None
    ) -> None:
        check_recipe(recipe)
        if explain is not None:
            from verl_agent.commands.reference import explain_setting as describe

            print_line(describe(explain, base))
            return
        if name != "eval":
            require_modules("verl")  # before the modules of training import its packages
        from verl_agent.runs.subprocess_run import recipe_command

        if not any(argument.startswith("-") for argument in context.args):  # --cfg job prints YAML alone
            print_line(f"checking {recipe}, its tasks and the machine ...")  # before seconds of imports
        sys.stdout.flush()
        os.execv(sys.executable, recipe_command(module, recipe, context.args))

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=help_text + RECIPE_HELP, context_settings=settings)(command)


for _command in RECIPE_COMMANDS:
    _add_recipe_command(*_command)
app.add_typer(recipes, name="recipes")
app.command()(quickstart)
app.command()(plan)
app.command()(launch)
app.command()(envs)
app.command("check-env")(check_env)
app.command("check-agent")(check_agent_command)
app.command("check-estimator")(check_estimator_command)
app.command("export-env")(export_env)
app.command()(view)
app.command()(leaderboard)
app.command()(suite)
app.command()(scaling)
app.command()(failures)
app.command("judge-agreement")(judge_agreement)
app.command("what-if")(what_if)
app.command()(control)
app.command("play")(play_game)
app.add_typer(study, name="study")
app.add_typer(records, name="records")


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run or of one checkpoint.")],
    into: Annotated[Path, typer.Option(help="Folder to write, new or empty.")],
    step: Annotated[int | None, typer.Option(help="Training step of the checkpoint. Default: the latest.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Export the checkpoint with the best validation result.")
    ] = False,
) -> None:
    """Export the model of a run in Hugging Face format: config, weights and tokenizer."""
    from verl_agent.runs.model_export import export_model as write

    print_line(f"model: {write(run, into, step, best)}")


@app.command()
def doctor(model: Annotated[Path | None, typer.Option(help="Folder of a model to check too.")] = None) -> None:
    """Show what this machine can run and the command that installs whatever is missing."""
    from verl_agent.commands.doctor import diagnose, print_checks
    from verl_agent.system.checks import Status

    results = diagnose(Path(), model)
    print_checks(results, Console())
    raise typer.Exit(code=int(any(result.status is Status.MISSING for result in results)))


@app.command("new-env")
def new_env(
    name: Annotated[str, typer.Argument(help="Name of the environment and of its Python package.")],
    into: Annotated[Path, typer.Option(help="Parent folder of the new package's folder.")] = Path(),
) -> None:
    """Create a package with a new environment: a small game, recipes, a data sheet and tests."""
    folder = write_package(name, into)
    print_line(f"Created {folder} with a game that is ready for training. Next steps:")
    for command in (f"cd {shlex.quote(str(folder))}", "pip install -e .", f"verl-agent check-env {name}", "pytest"):
        print_line(f"  {command}")
    print_line("README.md lists the training commands. Then replace the game in adapter.py with your environment.")


def _check_seconds(seconds: float) -> float:
    if not 0 < seconds < float("inf"):
        raise typer.BadParameter(f"{seconds:g} is not allowed. Allowed: a number of seconds > 0.")
    return seconds


@app.command("serve")
def serve_command(  # noqa: PLR0913 - one for each option
    env: Annotated[str, typer.Argument(help="Registered name of the environment.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on. If other machines can reach it, a token is required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535)] = 8000,
    hosts: Annotated[int, typer.Option(help="Maximum number of host processes for sessions.", min=1)] = 2,
    token: Annotated[
        str | None, typer.Option(envvar="VERL_AGENT_TOKEN", show_envvar=True, help="Token that clients must send.")
    ] = None,
    options: Annotated[str, typer.Option(help="Keyword arguments of the adapter, as JSON.")] = "{}",
    split: Annotated[str, typer.Option(help="Split of task numbers and of the seeds of a reset.")] = "train",
    timeout: Annotated[
        float, typer.Option(help="Timeout of one call into the environment, in seconds.", callback=_check_seconds)
    ] = 60.0,
    sessions: Annotated[int, typer.Option(help="Maximum number of open sessions.", min=1)] = 1024,
    connections: Annotated[int, typer.Option(help="Maximum number of open connections.", min=1)] = 2048,
    receive: Annotated[
        float, typer.Option(help="Seconds in which a request must arrive.", callback=_check_seconds)
    ] = 30.0,
    idle: Annotated[
        float, typer.Option(help="Seconds without a call after which a session is closed.", callback=_check_seconds)
    ] = 1800.0,
    drain: Annotated[
        float, typer.Option(help="Seconds to wait for running episodes after SIGTERM.", callback=_check_seconds)
    ] = 30.0,
    approve: Annotated[
        str | None, typer.Option(help="YAML file of an approval policy, whose rules decide on each action.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="openenv for OpenEnv's protocol alone, or the dialect to speak besides. Default: all."),
    ] = None,
    venv: Annotated[
        Path | None,
        typer.Option(help="Serve from a virtual environment in this folder; it is created if it is missing."),
    ] = None,
) -> None:
    """Serve an environment over HTTP to verl-agent on other machines, and to clients of AgentGym or OpenEnv."""
    if venv is not None:
        _serve_from(venv, env)
    from verl_agent.commands.serve import ServeSettings
    from verl_agent.commands.serve import serve_until_stopped as run
    from verl_agent.envs.http.settings import ServerLimits

    limits = ServerLimits(sessions=sessions, connections=connections, receive_s=receive, idle_s=idle, drain_s=drain)
    chosen = (env, read_json(options), split, host, port, token, hosts, timeout, limits, approve, protocol)
    run(ServeSettings(*chosen), print_line)


def _serve_from(folder: Path, env: str) -> NoReturn:
    """Run the same command in the virtual environment in `folder`, which is created if it is missing."""
    from verl_agent.envs.http.venv import clean_environment, prepare_venv, without_venv

    prepare_venv(folder, env, print_line)
    program = str(folder.resolve() / "bin" / "verl-agent")
    sys.stdout.flush()
    os.execve(program, [program, *without_venv(sys.argv[1:])], clean_environment())


def _add_commands() -> None:
    """Add the commands that packages register; log those that do not import."""
    for entry in sorted(entry_points(group=COMMANDS), key=lambda entry: entry.name):
        try:
            app.add_typer(entry.load(), name=entry.name)
        except ImportError as error:
            logging.getLogger(__name__).warning("command %r (%s) does not import: %s", entry.name, entry.value, error)


_add_commands()
