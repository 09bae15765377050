"""Gateways of programs in this event loop, whose requests a function of the messages answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from verl_agent.envs.program.gateway import Asked, Gateway
from verl_agent.types import Message

Policy = Callable[["Heard", Asked], Awaitable[str]]
"""Function that writes the reply to a request."""


@dataclass
class Heard:
    """Gateway, and the conversations that its policy has read."""

    gateway: Gateway
    conversations: list[list[Message]] = field(default_factory=list)

    @property
    def openai(self) -> dict[str, Any]:
        """Arguments of OpenAI's clients."""
        return {"base_url": f"{self.gateway.url}/v1", "api_key": self.gateway.token}

    @property
    def anthropic(self) -> dict[str, Any]:
        """Arguments of Anthropic's clients."""
        return {"base_url": self.gateway.url, "api_key": self.gateway.token}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of plain clients."""
        return {"Authorization": f"Bearer {self.gateway.token}"}


@asynccontextmanager
async def serving(reply: Policy) -> AsyncIterator[Heard]:
    """Serve a gateway that answers each request with the text that a function writes."""
    heard = Heard(Gateway())
    heard.gateway.start()
    answering = asyncio.create_task(_answer(heard, reply))
    try:
        yield heard
    finally:
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
        await heard.gateway.close()


async def _answer(heard: Heard, reply: Policy) -> None:
    while True:
        asked = await heard.gateway.next_request()
        heard.conversations.append(asked.messages)
        heard.gateway.answer(asked, await reply(heard, asked))


def replying(replies: Sequence[str]) -> Policy:
    """Return a function that gives replies in order."""
    left = iter(replies)

    async def reply(heard: Heard, asked: Asked) -> str:
        return next(left)

    return reply


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not condition():
        await asyncio.sleep(0.005)
