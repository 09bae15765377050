"""Command `verl-agent export-env`: an environment as a module of another framework."""

from pathlib import Path
from typing import Annotated

import typer

from verl_agent.commands.terminal import fail, print_line
from verl_agent.envs.registry import load_adapter

VERIFIERS = "verifiers"
MODULE = '''"""{name} of verl-agent as a task set of verifiers 0.4.0. Play it with: vf-eval {module}"""

from verl_agent.envs.program.verifiers_harness import ReplyHarness
from verl_agent.evaluation.verifiers_export import export

Tasks, Game = export({name!r})
__all__ = ["Game", "ReplyHarness", "Tasks"]
'''


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
    path.write_text(MODULE.format(name=name, module=path.stem), encoding="utf-8")
    print_line(f"module: {path}")
    print_line(
        f"play it where verifiers 0.4.0 and verl-agent are installed: PYTHONPATH={path.parent} vf-eval {path.stem}"
    )
