"""Command `verl-agent control`: pause, step, attend and end the episodes of a running command, or end it at once."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from verl_agent.commands.terminal import print_line
from verl_agent.errors import ConfigError, counted
from verl_agent.system.user import user_name
from verl_agent.terminal import Console, ask_line, say, show_table, styled
from verl_agent.visible import make_visible, one_line

EXPLAINED = (
    "status: list the episodes. pause, resume: hold the next action of one episode, or of all. step: let one paused "
    "action pass. read: list the episodes in play of an evaluation or a training run, or print one so far. "
    "attend: decide on an episode's actions here. end-episode: end one. end: kill the run within seconds."
)

READ = "read"
"""Command that reads files, so that it needs no control socket."""
ASKED = 6
"""Times that a run is asked for its episodes."""
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
    from verl_agent.oversight.attend import attend_at_terminal
    from verl_agent.oversight.control import COMMANDS
    from verl_agent.oversight.socket import send_command
    from verl_agent.oversight.terminal import check_terminal

    if command not in (*COMMANDS, READ):
        raise ConfigError(f"{command!r} is no command. Allowed: {', '.join((*COMMANDS, READ))}.")
    if episode is None and command in ("attend", "end-episode"):
        raise ConfigError(f"{command} needs the number of an episode; `verl-agent control {run}` lists them.")
    if episode is not None and command in ("status", "end"):
        raise ConfigError(f"{command} concerns the whole run. Leave out the episode {episode}.")
    if reason and command != "end-episode":
        raise ConfigError(f"--reason has no effect with {command}. It is for end-episode.")
    if episode is not None and command == "attend":
        check_terminal("verl-agent control RUN attend", f"attend in a browser: verl-agent view {run}")
        attend_at_terminal(run, episode, ask_line, print_line)
        return
    if command == READ:
        read(run, episode)
        return
    sent: dict[str, Any] = {"command": command, "reason": reason, "name": user_name()}
    answer = send_command(run, sent if episode is None else sent | {"episode": episode})
    if command in STARTED:  # the run answers before a waiting action passes, so its table would show the past
        print_line(f"{STARTED[command]} `verl-agent control {run}` lists the episodes.")
    else:
        show(answer)


def read(run: Path, number: int | None) -> None:
    """Print the list of the episodes in play, or the transcript of one so far.

    Raises:
        ConfigError: there is no such folder, or no such episode is being played.
    """
    from verl_agent.rollout.live import POLL_S, read_running

    if not run.is_dir():
        raise ConfigError(f"{run} is no folder of a run, nor one of records (episode.record_dir).")
    records = run / "episodes" if (run / "episodes").is_dir() else run
    running = read_running(records)
    for _ in range(ASKED):  # the first question asks the run's processes to write
        if running:
            break
        time.sleep(POLL_S)
        running = read_running(records)
    if number is None:
        table = Table("episode", "purpose", "step", "task", "turn")
        for one in running:
            record = one.record
            turn = f"{len(record['turns']) + 1} of {record['max_turns']}"
            texts = (record["purpose"], str(record["step"]), record["task"], turn)
            table.add_row(str(one.number), *(styled(one_line(text)) for text in texts))
        show_table(Console(), table)
        return
    found = [one.record for one in running if one.number == number]
    if not found:
        known = ", ".join(str(one.number) for one in running[:20]) or "none"
        raise ConfigError(f"episode {number} is not being played. Running: {known}.")
    for message in found[0]["messages"]:
        print_line(f"--- {one_line(message['role'])}\n{make_visible(message['content'])}")


def show(answer: dict[str, Any]) -> None:
    """Print the answer of a run."""
    if "killed" in answer:
        print_line(f"ended: {counted(answer['killed'], 'process')} killed.")
        return
    table = Table("episode", "task", "turn", "state", "attended by")
    for one in answer["episodes"]:
        state = ("paused" if one["paused"] else "") + (", waits" if one["waits"] else "")
        texts = (one["task"], str(one["turn"]), state.strip(", "), one["attended_by"])
        table.add_row(str(one["episode"]), *(styled(one_line(text)) for text in texts))
    console = Console()
    show_table(console, table)
    by = f" by {answer['paused_by']}" if answer["paused_by"] else ""
    say(console, f"The run is paused{by}." if answer["paused"] else "The run goes on.")
