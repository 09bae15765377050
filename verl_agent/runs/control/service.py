"""Control socket of a run that plays episodes in the event loop of this process."""

import asyncio
import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from verl_agent.rollout.person import PersonAnswer
from verl_agent.runs.control.seat import Seat
from verl_agent.runs.control.server import Connection, control_socket
from verl_agent.runs.control.state import RunControl, name_of
from verl_agent.sections import section

POLL_S = 0.2
"""Seconds between two checks that a person who waits for a question is still there."""


@contextmanager
def controlled(folder: Path, control: RunControl) -> Iterator[None]:
    """Let a person control the run in `folder` while the block runs; call it in the event loop of its episodes."""
    loop = asyncio.get_running_loop()

    def handle(command: Mapping[str, Any]) -> dict[str, Any]:
        if command["command"] == "end":  # without the loop, which may hang
            control.stopped = True
            return {"ended": True}
        answer: dict[str, Any] = _in_loop(loop, lambda: control.handle(command))
        return answer

    with control_socket(folder, handle, _serve_seat(control, loop)):
        yield


def _serve_seat(
    control: RunControl, loop: asyncio.AbstractEventLoop
) -> Callable[[Connection, Mapping[str, Any]], None]:
    """Return the function that serves the connection of a person who attends an episode."""

    def attend(connection: Connection, command: Mapping[str, Any]) -> None:
        seat = _in_loop(loop, lambda: control.attend(command.get("episode"), name_of(command)))
        try:
            connection.send({"attending": command.get("episode")})
            while (message := _next(connection, seat)) is not None:
                connection.send(message)
                if "ended" in message:
                    return
                answer = connection.receive(None)
                if answer is None:
                    return
                _in_loop(loop, partial(seat.answer, section("answer", PersonAnswer, answer)))
        finally:
            _in_loop(loop, lambda: control.leave(seat))

    return attend


def _next(connection: Connection, seat: Seat) -> dict[str, Any] | None:
    """Return the next message for the person; None if the person has gone."""
    while True:
        try:
            return seat.messages.get(timeout=POLL_S)
        except queue.Empty:
            if connection.closed:
                return None


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> Any:
    """Return the result of a call in the event loop of the run."""

    async def run() -> Any:
        return call()

    return asyncio.run_coroutine_threadsafe(run(), loop).result()
