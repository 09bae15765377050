"""Client of a person who attends one episode of a run over its control socket."""

import getpass
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError
from verl_agent.rollout.person import read_line
from verl_agent.runs.control.server import Connection, connect


def attend(folder: Path, episode: int, ask: Callable[[str], str | None], show: Callable[[str], None]) -> None:
    """Attend an episode until it ends or the person leaves.

    Args:
        folder: folder of the run.
        episode: number of the episode.
        ask: reads a line of the person after a prompt; None at the end of the input.
        show: prints a text.

    Raises:
        ConfigError: no run is active in the folder, or the episode cannot be attended.
    """
    with connect(folder) as stream:
        connection = Connection(stream)
        connection.send(
            {"command": "attend", "episode": episode, "name": f"{getpass.getuser()} (process {os.getpid()})"}
        )
        while (message := connection.receive(None)) is not None:
            if "error" in message:
                raise ConfigError(str(message["error"]))
            if "ended" in message:
                show(str(message["ended"]))
                return
            if "question" not in message:
                show(f"You attend episode {episode}; Ctrl-D leaves it paused.")
                continue
            show(str(message["refusal"] or message["question"]))
            if (answer := _read(ask, show)) is None:
                return
            connection.send(answer)


def _read(ask: Callable[[str], str | None], show: Callable[[str], None]) -> dict[str, Any] | None:
    while (line := ask("> ")) is not None:
        try:
            return asdict(read_line(line))
        except ConfigError as error:
            show(str(error))
    return None
