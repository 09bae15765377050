"""Client of a person who attends one episode of a run over its control socket."""

import getpass
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError
from verl_agent.rollout.person import PersonAnswer, read_line
from verl_agent.runs.control.server import ControlConnection, connect_to_run


class Attendance:
    """Connection of a person who attends one episode.

    Raises:
        ConfigError: no run is active in the folder.
    """

    def __init__(self, folder: Path, episode: int, name: str) -> None:
        self._stream = connect_to_run(folder)
        self._connection = ControlConnection(self._stream)
        self._connection.send({"command": "attend", "episode": episode, "name": name})

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message: `attending`, a `question` (`Seat.ask`), or `ended`; None if the run has ended.

        Raises:
            ConfigError: the episode cannot be attended, or the answer does not have the right form.
        """
        message = self._connection.receive(None)
        if message is not None and "error" in message:
            raise ConfigError(str(message["error"]))
        return message

    @property
    def ready(self) -> bool:
        """True if `receive` returns at once."""
        return self._connection.ready

    def answer(self, answer: str | Mapping[str, Any]) -> None:
        """Answer the last question by a line that a person typed, or by the fields of a `PersonAnswer`.

        Raises:
            ConfigError: the line is no answer, or the run has ended.
        """
        values = asdict(read_line(answer)) if isinstance(answer, str) else answer
        try:
            self._connection.send(values)
        except OSError as error:
            raise ConfigError("the run has ended.") from error

    def close(self) -> None:
        """Leave the episode, which is paused until somebody resumes or attends it."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()


def attend_at_terminal(
    folder: Path, episode: int, ask: Callable[[str], str | None], show: Callable[[str], None]
) -> None:
    """Attend an episode at a terminal until it ends or the person leaves.

    Raises:
        ConfigError: no run is active in the folder, or the episode cannot be attended.
    """
    attendance = Attendance(folder, episode, f"{getpass.getuser()} (process {os.getpid()})")
    try:
        while (message := attendance.receive()) is not None:
            if "ended" in message:
                show(str(message["ended"]))
                return
            if "question" not in message:
                show(f"You attend episode {episode}; Ctrl-D leaves it paused.")
                continue
            show(str(message["refusal"] or message["question"]))
            if (answer := _read(ask, show)) is None:
                return
            attendance.answer(asdict(answer))
    finally:
        attendance.close()


def _read(ask: Callable[[str], str | None], show: Callable[[str], None]) -> PersonAnswer | None:
    while (line := ask("> ")) is not None:
        try:
            return read_line(line)
        except ConfigError as error:
            show(str(error))
    return None
