"""Commands `verl-agent envs`, `check-env`, `check-agent`, `check-estimator` and `export-env`."""

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table

from verl_agent.commands.terminal import fail, print_line, quiet_libraries, read_json
from verl_agent.errors import ConfigError
from verl_agent.terminal import Console, show_table, styled

if TYPE_CHECKING:  # imported by the commands themselves, since every other command would wait for them
    from verl_agent.envs.base import EnvAdapter
    from verl_agent.envs.testing.check import Report

VERIFIERS = "verifiers"
MODULE = '''"""{name} of verl-agent as a task set of verifiers 0.4.0; `verl-agent export-env` prints how to play it."""

from verl_agent.envs.program.verifiers_harness import ReplyHarness
from verl_agent.evaluation.verifiers_export import export

Tasks, Game = export({arguments})
__all__ = ["Game", "ReplyHarness", "Tasks"]
'''

NEEDED = "MODEL, OPENAI_BASE_URL and OPENAI_API_KEY"
CLIENT = '-m "$MODEL" --client.base-url "$OPENAI_BASE_URL" --client.api-key-var OPENAI_API_KEY --no-push'
"""Arguments of vf-eval, whose defaults ask and upload to a service of its authors."""

Options = Annotated[str, typer.Option(help="Keyword arguments of the adapter, as JSON.")]
AgentOptions = Annotated[str, typer.Option(help="Keyword arguments of the agent, as JSON.")]


def envs(  # noqa: PLR0913 - one for each option
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
    agent_options: AgentOptions = "{}",
    options: Options = "{}",
    tasks: Annotated[int, typer.Option(help="Maximum number of tasks to measure.", min=1)] = 1000,
    seconds: Annotated[float, typer.Option(help="Seconds after which no further task starts.", min=0)] = 60.0,
) -> None:
    """List the installed environments. With NAME and --tokens, measure prompts and oracle's episodes of a split."""
    from verl_agent.config.settings import read_env
    from verl_agent.envs.registry import load_adapter, registered_envs

    if tokens is None:
        if name is not None:
            load_adapter(name)
        show_table(Console(), _table([name] if name else sorted(registered_envs())))
        return
    if name is None:
        fail("--tokens needs the name of an environment: verl-agent envs NAME --tokens MODEL.")
    values = {"name": name, "train_tasks": split, "options": read_json(options)}
    played = read_env({"env": values, "agent": {"name": agent, "options": read_json(agent_options)}})
    print_line(f"{name}, split {split}, agent {agent} (--agent for another), model {tokens}")
    with quiet_libraries():
        from verl_agent.models.hf import load_tokenizer
        from verl_agent.models.resolve import resolve_model
        from verl_agent.training.preflight.oracle_lengths import measure_oracle
        from verl_agent.training.preflight.prompts import measure_prompts

        measured = measure_prompts(played, tokens, tasks, seconds)
        oracle = measure_oracle(played, load_tokenizer(resolve_model(tokens), "--tokens"), min(tasks, 200), seconds)
    print_line(str(measured))
    print_line(str(oracle or "no oracle: turns, replies and answers are not known"))
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
        bool,
        typer.Option("--attack", help="Instead, play policies without skill; report what they earn and should not."),
    ] = False,
    turns: Annotated[int, typer.Option(help="Turn limit of --attack.", min=1)] = 30,
) -> None:
    """Test an environment against the contract and print what to change."""
    from verl_agent.envs.registry import make_env
    from verl_agent.envs.testing.check import check_adapter

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
    from verl_agent.envs.registry import make_env

    adapter = make_env(env) if env else None
    formats, actions = ([adapter.action_format], check.actions_of(adapter)) if adapter else (check.FORMATS, [])
    _end(name, check.check_agent(name, read_json(options), formats, actions, on_line=print_line))


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


def export_env(  # noqa: PLR0913 - one for each option
    name: Annotated[str, typer.Argument(help="Registered name of the environment.")],
    framework: Annotated[str, typer.Option("--as", help="Framework: verifiers.")] = VERIFIERS,
    agent: Annotated[str, typer.Option(help="Registered name of the agent.")] = "act",
    agent_options: AgentOptions = "{}",
    options: Options = "{}",
    split: Annotated[str, typer.Option(help="Split whose tasks are played.")] = "test",
    turns: Annotated[int, typer.Option(help="Turn limit of an episode.", min=1)] = 30,
    out: Annotated[
        Path | None, typer.Option(help="Module to write. Default: NAME_verifiers.py in this folder.")
    ] = None,
) -> None:
    """Write an environment as a module that another framework plays; its settings are defaults there."""
    from verl_agent.config.settings import read_env

    if framework != VERIFIERS:
        fail(
            f"--as {framework!r} is not allowed. Allowed: {VERIFIERS}. "
            f"For OpenEnv: verl-agent serve {name} --protocol openenv."
        )
    values = {"name": name, "train_tasks": split, "options": read_json(options)}
    played = read_env({"env": values, "agent": {"name": agent, "options": read_json(agent_options)}})
    played.tasks(split, "--split")
    played.new_agent()
    path = out or Path(f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_verifiers.py")
    if not path.stem.isidentifier() or path.suffix != ".py":
        fail(f"--out={str(path)!r} is no module that Python imports. Allowed: a name such as my_env.py.")
    if path.stem in sys.stdlib_module_names:
        fail(f"--out={str(path)!r} would hide the module {path.stem} of Python. Choose another name.")
    if path.exists():
        fail(f"{str(path)!r} exists. Remove it, or choose another file with --out.")
    if not path.parent.is_dir():
        fail(f"--out={str(path)!r}: the folder {path.parent} does not exist. Create it, or choose another file.")
    given: dict[str, Any] = {"options": values["options"], "agent": agent, "agent_options": dict(played.agent.options)}
    given |= {"split": split, "max_turns": turns}
    arguments = ", ".join([repr(name), *(f"{key}={value!r}" for key, value in given.items() if value)])
    folder = shlex.quote(str(path.parent.resolve()))
    try:
        path.write_text(MODULE.format(name=name, arguments=arguments), encoding="utf-8")
    except OSError as error:
        fail(f"--out={str(path)!r} cannot be written ({error.strerror}). Choose another file.")
    print_line(f"module: {path}")
    print_line(f"play it where {NEEDED} are set, and verifiers 0.4.0 and verl-agent installed:")
    print_line(f"PYTHONPATH={folder} vf-eval {path.stem} {CLIENT}")


def _end(name: str, report: "Report") -> NoReturn:
    """Print the result of a check and end the command."""
    count = len(report.violations)
    print_line(f"{name} violates the contract: {count} to change." if count else f"{name} fulfils the contract.")
    raise typer.Exit(code=int(bool(count)))


def _attack(name: str, env: "EnvAdapter", items: int, turns: int, seconds: float) -> int:
    """Attack the reward of an environment and print the results; return the exit code."""
    from verl_agent.envs.testing.attack import attack_env
    from verl_agent.results.statistics import mean_return

    report = attack_env(env, items, turns, seconds, print_line)
    for line in report.lines(lambda returns: mean_return(returns, report.solution)):
        print_line(line)
    count = len(report.findings)
    if not count and not report.enough:
        print_line(f"{name}: {report.tasks} tasks are too few for a finding. Give --attack more tasks or --seconds.")
    else:
        print_line(f"{name}: {count} findings." if count else f"{name}: no attack succeeds.")
    return int(bool(count))


def _table(names: list[str]) -> Table:
    """Return a table of environments, with the reason for each one that cannot be made without options."""
    from verl_agent.envs.registry import make_env, registered_envs

    packages, table = registered_envs(), Table("environment", "splits", "package")
    for name in names:
        try:
            splits = ", ".join(make_env(name).splits)
        except ConfigError as error:
            splits = str(error)
        table.add_row(name, styled(splits), packages.get(name, "?"))
    return table
