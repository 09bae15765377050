"""Commands `verl-agent envs`, `check-env`, `check-agent`, `check-estimator` and `export-env`."""

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verl_agent.commands.terminal import fail, print_line, quiet_libraries, read_json
from verl_agent.config.settings import read_env
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import load_adapter, make_env, registered_envs
from verl_agent.envs.testing.check import Report, check_adapter
from verl_agent.errors import ConfigError

VERIFIERS = "verifiers"
MODULE = '''"""{name} of verl-agent as a task set of verifiers 0.4.0. Play it with: vf-eval {module}"""

from verl_agent.envs.program.verifiers_harness import ReplyHarness
from verl_agent.evaluation.verifiers_export import export

Tasks, Game = export({name!r})
__all__ = ["Game", "ReplyHarness", "Tasks"]
'''

Options = Annotated[str, typer.Option(help="Keyword arguments of the adapter, as JSON.")]


def envs(
    name: Annotated[str | None, typer.Argument(help="Registered name of one environment. Default: all.")] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Measure the prompts of a split in tokens of this model: a folder, a hub id or smollm2-135m.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Split to measure, or a file of task ids.")] = "train",
    agent: Annotated[str, typer.Option(help="Registered name of the agent that builds the prompts.")] = "react",
    options: Options = "{}",
    tasks: Annotated[int, typer.Option(help="Maximum number of tasks to measure.", min=1)] = 1000,
    seconds: Annotated[float, typer.Option(help="Seconds after which no further task starts.", min=0)] = 60.0,
) -> None:
    """List the installed environments. With NAME and --tokens, measure the prompts of a split."""
    if tokens is None:
        if name is not None:
            load_adapter(name)
        Console().print(_table([name] if name else sorted(registered_envs())))
        return
    if name is None:
        fail("--tokens needs the name of an environment: verl-agent envs NAME --tokens MODEL.")
    values = {"name": name, "train_tasks": split, "options": read_json(options)}
    played = read_env({"env": values, "agent": {"name": agent}})
    with quiet_libraries():
        from verl_agent.training.preflight.prompts import measure_prompts

        measured = measure_prompts(played, tokens, tasks, seconds)
    print_line(f"{name}, split {split}, agent {agent} (--agent for another), model {tokens}")
    print_line(str(measured))
    print_line(f"Suggested: data.max_prompt_length={measured.suggested}")


def check_env(
    name: Annotated[str, typer.Argument(help="Registered name of the environment.")],
    options: Options = "{}",
    items: Annotated[
        int | None, typer.Option(help="Number of tasks of each split. Default: 4, with --attack 50.", min=1)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Seconds after which a check skips further tasks. Default: 10, with --attack 120.", min=0),
    ] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Instead, play attacks on the reward; report what beats random actions.")
    ] = False,
    turns: Annotated[int, typer.Option(help="Turn limit of --attack.", min=1)] = 30,
) -> None:
    """Test an environment against the contract and print what to change."""
    keywords = read_json(options)
    env = make_env(name, keywords)
    if attack:
        raise typer.Exit(code=_attack(name, env, items or 50, turns, 120.0 if seconds is None else seconds))
    budget_s = 10.0 if seconds is None else seconds
    _end(name, check_adapter(type(env), keywords, items or 4, name=name, budget_s=budget_s, on_line=print_line))


def check_agent_command(
    name: Annotated[str, typer.Argument(help="Registered name of the agent.")],
    options: Annotated[str, typer.Option(help="Keyword arguments of the agent, as JSON.")] = "{}",
    env: Annotated[str | None, typer.Option(help="Environment whose action format is tried. Default: three.")] = None,
) -> None:
    """Test that prompt, parser and format error of an agent agree, and print what to change."""
    from verl_agent.agents import check

    formats = [make_env(env).action_format] if env else check.FORMATS
    _end(name, check.check_agent(name, read_json(options), formats, on_line=print_line))


def check_estimator_command(
    name: Annotated[str, typer.Argument(help="Registered name of the advantage estimator.")],
    options: Annotated[str, typer.Option(help="Keyword arguments of the estimator, as JSON.")] = "{}",
) -> None:
    """Test an advantage estimator on random batches, and print what to change."""
    from verl_agent.config.algorithms import find_estimator

    find_estimator(name)  # an unknown name is reported before torch and verl are imported
    with quiet_libraries():
        from verl_agent.training import estimator_check

    _end(name, estimator_check.check_estimator(name, read_json(options), on_line=print_line))


def export_env(
    name: Annotated[str, typer.Argument(help="Registered name of the environment.")],
    framework: Annotated[str, typer.Option("--as", help="Framework: verifiers.")] = VERIFIERS,
    out: Annotated[
        Path | None, typer.Option(help="Module to write. Default: NAME_verifiers.py in this folder.")
    ] = None,
) -> None:
    """Write an environment as a module that another framework plays."""
    if framework != VERIFIERS:
        fail(
            f"--as {framework!r} is not allowed. Allowed: {VERIFIERS}. "
            f"For OpenEnv: verl-agent serve {name} --protocol openenv."
        )
    load_adapter(name)
    path = out or Path(f"{name}_verifiers.py")
    if path.exists():
        fail(f"{str(path)!r} exists. Remove it, or choose another file with --out.")
    if not path.parent.is_dir():
        fail(f"--out={str(path)!r}: the folder {path.parent} does not exist. Create it, or choose another file.")
    try:
        path.write_text(MODULE.format(name=name, module=path.stem), encoding="utf-8")
    except OSError as error:
        fail(f"--out={str(path)!r} cannot be written ({error.strerror}). Choose another file.")
    print_line(f"module: {path}")
    print_line(
        f"play it where verifiers 0.4.0 and verl-agent are installed: PYTHONPATH={path.parent} vf-eval {path.stem}"
    )


def _end(name: str, report: Report) -> NoReturn:
    """Print the result of a check and end the command."""
    count = len(report.violations)
    print_line(f"{name} violates the contract: {count} to change." if count else f"{name} fulfils the contract.")
    raise typer.Exit(code=int(bool(count)))


def _attack(name: str, env: EnvAdapter, items: int, turns: int, seconds: float) -> int:
    """Attack the reward of an environment and print the results; return the exit code."""
    from verl_agent.evaluation.attack import attack_env, upper_limit

    report = attack_env(name, env, items, turns, seconds, print_line)
    table = Table("attack", "strongest", "return", "against", "tasks above", "at most (95 %)", "errors", box=SIMPLE)
    for strongest, above in report.families:
        against = f"{strongest.baseline:.3f} ({strongest.attack.baseline})"
        limit, share = f"{upper_limit(above, report.tasks):.1%}", f"{above} of {report.tasks}"
        row = (strongest.attack.variant, f"{strongest.mean:.3f}", against, share, limit, str(strongest.errors))
        table.add_row(strongest.attack.family, *map(escape, row))
    Console(width=140).print(table)
    print_line(
        f"{len(report.results)} attacks on {report.tasks} of {report.of} tasks, at most {turns} turns. "
        "`at most`: share of the tasks on which an attack of the line may earn more, one-sided limit."
    )
    for result in report.findings:
        gain = f"{result.mean:.3f} instead of {result.baseline:.3f} ({result.attack.baseline})"
        tasks = f", for example on {', '.join(map(repr, result.above[:3]))}" if result.above else ""
        errors = f"; {result.errors} episodes ended with an environment error" if result.errors else ""
        print_line(f"FAIL  {result.attack} earns {gain} on {len(result.above)} tasks{tasks}{errors}.")
    count = len(report.findings)
    if not count and not report.enough:
        print_line(f"{name}: {report.tasks} tasks are too few for a finding. Give --attack more tasks or --seconds.")
    else:
        print_line(f"{name}: {count} attacks earn more than they should." if count else f"{name}: no attack succeeds.")
    return int(bool(count))


def _table(names: list[str]) -> Table:
    """Return a table of environments, with the reason for each one that cannot be made without options."""
    packages, table = registered_envs(), Table("environment", "splits", "package")
    for name in names:
        try:
            splits = ", ".join(make_env(name).splits)
        except ConfigError as error:
            splits = str(error)
        table.add_row(name, escape(splits), packages.get(name, "?"))
    return table
