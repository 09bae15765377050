"""Client of AgentGym's protocol; it does not import `verl_agent`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientResponse, ClientSession


@dataclass(frozen=True, slots=True)
class Script:
    """Actions of one episode.

    Attributes:
        item: number of the task in the server's split.
        actions: actions in order.
    """

    item: int
    actions: Sequence[str]


class Session:
    """Session on a server, over a connection of its own."""

    def __init__(self, http: ClientSession, number: int) -> None:
        self._http, self._number = http, number

    @classmethod
    async def open(cls, url: str) -> "Session":
        """Open a session on the server at `http://host:port`."""
        http = ClientSession(url, raise_for_status=_check)
        return cls(http, (await _post(http, "/create", {}))["id"])

    async def reset(self, item: int) -> Any:
        return await _post(self._http, "/reset", {"id": self._number, "data_idx": item})

    async def step(self, action: str) -> Any:
        return await _post(self._http, "/step", {"id": self._number, "action": action})

    async def close(self) -> None:
        await _post(self._http, "/close", {"id": self._number})
        await self._http.close()


async def _post(http: ClientSession, path: str, body: dict[str, Any]) -> Any:
    async with http.post(path, json=body) as answer:
        return json.loads(await answer.read())


async def _check(answer: ClientResponse) -> None:
    assert answer.status == 200, f"{answer.status}: {await answer.text()}"
