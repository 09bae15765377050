"""Test that the viewer can be opened at every name of its machine, and by nobody without the token."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from typer.testing import CliRunner

from verl_agent.commands.cli import app
from verl_agent.viewer.access import COOKIE, GuardRequests
from verl_agent.viewer.server import listen


def guarded(host: str, token: str = "secret") -> GuardRequests:
    async def show(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(request.url))

    return GuardRequests(Starlette(routes=[Route("/{path:path}", show)]), host, token)


def answer(guard: GuardRequests, path: str = "/?token=secret", **headers: str) -> httpx.Response:
    encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard)) as client:
            return await client.get(f"http://127.0.0.1:8080{path}", headers=encoded)

    return asyncio.run(get())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
def test_a_viewer_at_all_addresses_takes_every_host_with_the_token(host: str) -> None:
    guard = guarded(host)
    for name in ("10.0.0.5:8080", "gpu1:8080", "127.0.0.1:8080", "[::1]:8080"):
        assert answer(guard, host=name).status_code == 303, name
        assert answer(guard, "/", host=name).status_code == 403, name
    assert answer(guard, host="gpu1:8080", origin="http://evil.example").status_code == 403
    assert answer(guard, host="gpu1:8080", origin="http://gpu1:8080").status_code == 303


def test_host_names_are_compared_without_case() -> None:
    assert answer(guarded("GPU1"), host="gpu1:8080").status_code == 303
    assert answer(guarded("gpu1"), host="GPU1:8080", origin="http://gpu1:8080").status_code == 303
    assert answer(guarded("gpu1"), host="gpu2:8080").status_code == 403


@pytest.mark.parametrize("headers", [{"host": "[::1"}, {"host": "127.0.0.1:port"}, {"origin": "http://[x"}])
def test_headers_that_cannot_be_parsed_are_refused(headers: dict[str, str]) -> None:
    assert answer(guarded("127.0.0.1"), "/", **headers).status_code == 403


def test_a_cookie_of_another_program_is_ignored() -> None:
    cookie = f"a/b=1; \xe9=\xff; {COOKIE}_8080=secret"
    assert answer(guarded("127.0.0.1"), "/", cookie=cookie).status_code == 200


def test_the_url_with_the_token_leads_to_its_page_with_the_other_parameters() -> None:
    guard = guarded("0.0.0.0")
    first = answer(guard, "/run/a%23b/episodes?step=1..2&token=secret&text=x%26y&sort=")
    assert first.headers["location"] == "/run/a%23b/episodes?step=1..2&text=x%26y&sort="
    assert answer(guard, "//evil.example/?token=secret").headers["location"] == "/evil.example/"


def test_a_browser_that_has_the_cookie_gets_the_page_without_the_token_in_its_parameters() -> None:
    """Pages refuse parameters that they do not know."""
    cookie = f"{COOKIE}_8080=secret"
    for token in ("secret", "old"):
        again = answer(guarded("127.0.0.1"), f"/run/a/episodes?step=1&token={token}", cookie=cookie)
        assert (again.status_code, again.headers["location"]) == (303, "/run/a/episodes?step=1")


def test_viewers_at_two_ports_of_a_host_have_cookies_of_their_own() -> None:
    first = answer(guarded("0.0.0.0", "one"), "/?token=one", host="gpu1:8080").cookies
    second = answer(guarded("0.0.0.0", "two"), "/?token=two", host="gpu1:8081").cookies
    cookie = "; ".join(f"{name}={value}" for name, value in {**first, **second}.items())
    assert first.keys() == {f"{COOKIE}_8080"}
    assert answer(guarded("0.0.0.0", "one"), "/", host="gpu1:8080", cookie=cookie).status_code == 200
    assert answer(guarded("0.0.0.0", "two"), "/", host="gpu1:8081", cookie=cookie).status_code == 200


def test_the_url_of_a_viewer_at_all_addresses_names_the_machine() -> None:
    address = listen("0.0.0.0", 0)
    address.socket.close()
    assert "0.0.0.0" not in address.link()
    assert address.link().endswith(f"/?token={address.token}")
    assert address.link("/run/a?x=1").endswith(f"/run/a?x=1&token={address.token}")


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_no_machine_has_is_refused(port: str) -> None:
    result = CliRunner().invoke(app, ["view", ".", "--port", port])
    assert result.exit_code == 2 and "--port" in result.output
