"""Command `verl-agent control`: pause, step, attend and end the episodes of a running command, or end it at once."""

import getpass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from verl_agent.commands.terminal import print_line
from verl_agent.errors import ConfigError, counted

EXPLAINED = (
    "status: list the episodes. pause, resume: hold the next action of one episode, or of all. step: let one paused "
    "action pass. attend: decide on an episode's actions here. end-episode: end one. end: kill the run within seconds."
)

STARTED = {"resume": "The held actions pass.", "step": "One held action of each chosen episode passes."}
"""Messages for commands that take effect after the run has answered."""


def control(
    run: Annotated[Path, typer.Argument(help="Folder of a running command, which prints it at its start.")],
    command: Annotated[str, typer.Argument(help=EXPLAINED)] = "status",
    episode: Annotated[
        int | None, typer.Argument(help="Number of an episode in `status`; needed for attend and end-episode.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason for end-episode, for the record.")] = "",
) -> None:
    """Control a running evaluation or game from another terminal; a training run can be ended."""
    from verl_agent.runs.control.attend import attend_at_terminal
    from verl_agent.runs.control.server import send_command
    from verl_agent.runs.control.state import COMMANDS
    from verl_agent.runs.terminal_person import check_terminal

    try:
        if command not in COMMANDS:
            raise ConfigError(f"{command!r} is no command. Allowed: {', '.join(COMMANDS)}.")
        if episode is None and command in ("attend", "end-episode"):
            raise ConfigError(f"{command} needs the number of an episode; `verl-agent control {run}` lists them.")
        if episode is not None and command in ("status", "end"):
            raise ConfigError(f"{command} concerns the whole run. Leave out the episode {episode}.")
        if reason and command != "end-episode":
            raise ConfigError(f"--reason has no effect with {command}. It is for end-episode.")
        if episode is not None and command == "attend":
            check_terminal("verl-agent control RUN attend", f"attend in a browser: verl-agent view {run}")
            attend_at_terminal(run, episode, _read, print_line)
            return
        sent: dict[str, Any] = {"command": command, "reason": reason, "name": getpass.getuser()}
        answer = send_command(run, sent if episode is None else sent | {"episode": episode})
        if command in STARTED:  # the run answers before a waiting action passes, so its table would show the past
            print_line(f"{STARTED[command]} `verl-agent control {run}` lists the episodes.")
        else:
            show(answer)
    except KeyboardInterrupt:
        raise typer.Exit(code=130) from None


def show(answer: dict[str, Any]) -> None:
    """Print the answer of a run."""
    if "killed" in answer:
        print_line(f"ended: {counted(answer['killed'], 'process')} killed.")
        return
    table = Table("episode", "task", "turn", "state", "attended by")
    for one in answer["episodes"]:
        state = ("paused" if one["paused"] else "") + (", waits" if one["waits"] else "")
        table.add_row(str(one["episode"]), one["task"], str(one["turn"]), state.strip(", "), one["attended_by"])
    console = Console()
    console.print(table)
    by = f" by {answer['paused_by']}" if answer["paused_by"] else ""
    console.print(f"The run is paused{by}." if answer["paused"] else "The run goes on.", markup=False)


def _read(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None
