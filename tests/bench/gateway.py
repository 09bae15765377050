"""Time that the endpoint of programs adds to a turn: `python -m tests.bench.gateway [SESSIONS] [TURNS]`.

Sessions, each with a gateway of its own, ask at the same time; the policy answers at once. A turn is measured from the
arrival of the request at the gateway's socket to the last byte of the answer, less the time that the policy waited
before it took the request and wrote. The client is a bare connection, so that its own cost does not count.
"""

import asyncio
import json
import sys
import time
from statistics import median, quantiles
from typing import Any

from verl_agent.envs.program.gateway import Gateway

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
OBSERVATION = "drwxr-xr-x 2 agent agent 60 .\n" * 60
"""Result of a call, 1,800 characters."""


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, token: str) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: "
    writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    size = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return await reader.readexactly(int(size.partition(b":")[2]))


async def _answer(gateway: Gateway) -> None:
    while True:
        gateway.answer(await gateway.next_request(), f"I look.\n{CALL}")


async def _play(turns: int, pause_s: float) -> list[float]:
    """Return the seconds of each turn of one session, which pauses between turns as a model would."""
    gateway = Gateway()
    gateway.start()
    answering = asyncio.create_task(_answer(gateway))
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s" * 4000}, {"role": "user", "content": "go"}]
    spent = []
    for _ in range(turns):
        body = json.dumps({"model": "m", "messages": messages, "tools": TOOLS}).encode()
        await asyncio.sleep(pause_s)
        start = time.perf_counter()
        answer = await _exchange(reader, writer, body, gateway.token)
        spent.append(time.perf_counter() - start)
        message = json.loads(answer)["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": OBSERVATION}
        messages += [message, result]
    writer.close()
    answering.cancel()
    await gateway.close()
    return spent


async def measure(sessions: int, turns: int, pause_s: float) -> tuple[list[float], float]:
    """Return the seconds of all turns, and the seconds of the processor for each."""
    before = time.process_time()
    every = await asyncio.gather(*(_play(turns, pause_s + number * pause_s / sessions) for number in range(sessions)))
    spent = [one for each in every for one in each]
    return spent, (time.process_time() - before) / len(spent)


def main(sessions: int = 64, turns: int = 20) -> None:
    """Print the times of one session, and of many whose models write for half a second or more."""
    for number in (1, sessions):
        spent, processor = asyncio.run(measure(number, turns, 0.5))
        last = quantiles(spent, n=20)[-1]
        text = f"{number} sessions, {turns} turns: median {median(spent) * 1e3:.2f} ms, 95 % below {last * 1e3:.2f} ms"
        sys.stdout.write(f"{text}; {processor * 1e3:.2f} ms of the processor a turn, with the client\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
