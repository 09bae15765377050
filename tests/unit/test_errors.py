"""Test that failures of the machine are told apart from those of an environment's own code."""

import asyncio
import sqlite3
import urllib.error
from collections.abc import Callable
from email.message import Message

import aiohttp
import httpx
import pytest
import requests

from verl_agent.errors import EnvCrashError, EnvError, env_failure

REQUEST = httpx.Request("GET", "http://backend/search")


def answered(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError(f"answer {status}", request=REQUEST, response=httpx.Response(status, request=REQUEST))


def answered_requests(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"answer {status}", response=response)


def answered_openai(name: str, status: int) -> Exception:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
    response = httpx.Response(status, request=REQUEST)
    return getattr(openai, name)("refused", response=response, body=None)


def raised(call: Callable[[], object]) -> Exception:
    """Return the exception that a call raises."""
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def locked_database(folder) -> Exception:
    """Return the error of a second writer."""
    with sqlite3.connect(folder / "base", timeout=0) as first, sqlite3.connect(folder / "base", timeout=0) as second:
        first.execute("CREATE TABLE items (name TEXT)")
        first.execute("BEGIN EXCLUSIVE")
        return raised(lambda: second.execute("INSERT INTO items VALUES ('a')"))


async def refused_by_aiohttp() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, aiohttp.ClientSession() as client:
        await client.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


@pytest.mark.parametrize(
    "make",
    [
        *(lambda _, status=status: answered(status) for status in (401, 429, 500, 503)),
        *(lambda _, status=status: answered_requests(status) for status in (403, 503)),
        lambda _: urllib.error.HTTPError("http://backend", 502, "Bad Gateway", Message(), None),
        lambda _: answered_openai("RateLimitError", 429),
        lambda _: answered_openai("InternalServerError", 500),
        lambda _: httpx.RemoteProtocolError("Server disconnected without sending a response."),
        lambda _: httpx.ConnectError("All connection attempts failed"),
        lambda _: httpx.ReadTimeout("late"),
        lambda _: raised(lambda: asyncio.run(refused_by_aiohttp())),
        lambda _: aiohttp.ClientPayloadError("Response payload is not completed"),
        lambda _: requests.ConnectionError("refused"),
        locked_database,
        lambda _: ExceptionGroup("calls", [ValueError("x"), ExceptionGroup("inner", [OSError(111, "refused")])]),
        lambda _: MemoryError(),
    ],
)
def test_failures_of_the_network_of_services_and_of_the_machine_are_no_crash_of_the_environment(make, tmp_path):
    assert type(env_failure("step", make(tmp_path))) is EnvError


@pytest.mark.parametrize(
    "make",
    [
        lambda: KeyError("observation"),
        lambda: answered(404),
        lambda: answered_requests(422),
        lambda: answered_openai("BadRequestError", 400),
        lambda: httpx.UnsupportedProtocol("Request URL has an unsupported protocol 'htp://'."),
        lambda: httpx.LocalProtocolError("Illegal header value"),
        lambda: raised(lambda: sqlite3.connect(":memory:").execute("SELECT * FROM nowhere")),
        lambda: ExceptionGroup("calls", [ValueError("x"), KeyError("y")]),
    ],
)
def test_other_exceptions_are_crashes_of_the_environment(make):
    assert type(env_failure("step", make())) is EnvCrashError


def test_an_exception_whose_text_cannot_be_made_is_named():
    class ApiError(Exception):
        def __str__(self) -> str:
            return 42  # type: ignore[return-value]

    assert str(env_failure("step", ApiError())) == "step failed: ApiError: (its text cannot be made)"
