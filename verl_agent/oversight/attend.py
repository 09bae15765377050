"""Client of a person who attends one episode of a run over its control socket."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from aiohttp import ClientWebSocketResponse

from verl_agent.errors import ConfigError
from verl_agent.oversight.base import Decision
from verl_agent.oversight.person import read_line
from verl_agent.oversight.question import Question
from verl_agent.oversight.socket import connect_to_run, receive
from verl_agent.system.user import user_name


@asynccontextmanager
async def attending(folder: Path, episode: int, name: str) -> AsyncIterator[ClientWebSocketResponse]:
    """Attend an episode while the block runs; afterwards it is paused until somebody resumes or attends it.

    The run sends `attending`, `question` with `refusal` and `number`, `notice` or `ended`. It gets the fields of a
    `Decision` and the `number` of the question.

    Raises:
        ConfigError: no run is active in the folder.
    """
    async with connect_to_run(folder) as stream:
        await stream.send_json({"command": "attend", "episode": episode, "name": name})
        yield stream


def attend_at_terminal(
    folder: Path, episode: int, ask: Callable[[str], str | None], show: Callable[[str], None]
) -> None:
    """Attend an episode at a terminal until it ends or the person leaves.

    Raises:
        ConfigError: no run is active in the folder, or the episode cannot be attended.
    """
    loop, stack, told = asyncio.new_event_loop(), AsyncExitStack(), False  # Ctrl-C interrupts `ask`, outside the loop
    wait = loop.run_until_complete
    try:
        name = f"{user_name()} (process {os.getpid()})"
        stream = wait(stack.enter_async_context(attending(folder, episode, name)))
        while (message := wait(receive(stream))) is not None:
            if text := message.get("ended") or message.get("notice"):
                show(text)
            elif "question" not in message:
                show(f"You attend episode {episode}; Ctrl-D leaves it paused.")
            else:
                show(message["refusal"] or Question(**message["question"]).text(told=told))
                told = True
                if (answer := _read(ask, show)) is None:
                    return
                wait(stream.send_json({**asdict(answer), "number": message["number"]}))
    finally:
        wait(stack.aclose())
        loop.close()


def _read(ask: Callable[[str], str | None], show: Callable[[str], None]) -> Decision | None:
    while (line := ask("> ")) is not None:
        try:
            return read_line(line)
        except ConfigError as error:
            show(str(error))
    return None
