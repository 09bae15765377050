"""Proxies: connections within this machine never use one, others do where the environment names one."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.request import proxy_bypass_environment

import pytest

from env_adapters.deepsearch.retriever import HttpRetriever
from env_adapters.openenv.adapter import OpenEnv
from env_adapters.webarena.grading.judge import EndpointJudge
from tests.support.proxy import CountingProxy, counting_proxy
from verl_agent.envs.http.transport import transport
from verl_agent.envs.machine.proxies import VARIABLES, child_environment, own_names, proxy_of, settle_proxies
from verl_agent.errors import ConfigError, EnvError

ANSWER = {
    "choices": [{"message": {"content": "Grade: correct"}}],
    "result": [[{"document": {"id": "0", "contents": '"Paris"\ntext'}, "score": 1.0}]],
    "action": {"properties": {"action": {"type": "string"}}},
}
LOCAL = (
    *("localhost", "LocalHost.", "api.localhost", "127.0.0.1", "127.0.0.2", "127.1.2.3", "127.1", "0.0.0.0"),
    *("localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback", "localhost4.localdomain4"),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", socket.gethostname()),
)


@pytest.fixture
def proxy(monkeypatch) -> Iterator[CountingProxy]:
    """A proxy; no variable of the environment names another one."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with counting_proxy(ANSWER) as server:
        yield server


@pytest.mark.parametrize("scheme", ["http", "https", "ws", "wss"])
@pytest.mark.parametrize("host", LOCAL)
def test_connections_within_this_machine_use_no_proxy(host, scheme):
    everything = dict.fromkeys(("HTTP_PROXY", "https_proxy", "ALL_PROXY"), "http://proxy.test:3128")
    assert proxy_of(f"{scheme}://{host}:8000/v1", everything) is None


@pytest.mark.parametrize("address", sorted(own_names()))
def test_the_addresses_of_this_machine_need_no_proxy(address):
    host = f"[{address}]" if ":" in address else address
    assert proxy_of(f"http://{host}:8000", {"HTTP_PROXY": "http://proxy.test"}) is None


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        ("http://a.test", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://a.test", {"http_proxy": "http://p:1"}, "http://p:1"),
        ("http://a.test", {"http_proxy": "http://p:1", "HTTP_PROXY": "http://q:1"}, "http://p:1"),
        ("http://a.test", {"http_proxy": "p:1"}, "http://p:1"),
        ("http://a.test", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://a.test", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://a.test", {"all_proxy": "http://p:1"}, "http://p:1"),
        ("ws://a.test", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("wss://a.test", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("http://localhost.test", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://a.test", {"HTTP_PROXY": " "}, None),
        ("http://a.test", {}, None),
    ],
)
def test_the_variable_of_the_scheme_names_the_proxy(url, environment, expected):
    assert proxy_of(url, environment) == expected


@pytest.mark.parametrize(
    ("host", "exceptions", "excepted"),
    [
        ("a.test", "a.test", True),
        ("b.a.test", "a.test", True),
        ("b.a.test", ".a.test", True),
        ("b.a.test", "*.a.test", True),
        ("ba.test", "a.test", False),
        ("a.test", "b.test, a.test", True),
        ("a.test", "b.test a.test", True),
        ("A.TEST", "a.test", True),
        ("a.test:81", "a.test:81", True),
        ("a.test", "a.test:81", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("[2001:db8::7]", "2001:db8::/32", True),
        ("[2001:db8::7]", "[2001:db8::7]", True),
        ("[2001:db8::7]:81", "[2001:db8::7]:81", True),
        ("a.test", "*", True),
        ("a.test", "", False),
    ],
)
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_exceptions_are_read_in_both_spellings(host, exceptions, excepted, name):
    other = "no_proxy" if name == "NO_PROXY" else "NO_PROXY"
    environment = {"HTTP_PROXY": "http://p:1", name: exceptions, other: "elsewhere.test"}
    assert (proxy_of(f"http://{host}/", environment) is None) == excepted


@pytest.mark.parametrize("exceptions", ["a.test", ".a.test", "b.test,a.test", "a.test:81"])
@pytest.mark.parametrize("host", ["a.test", "x.a.test", "xa.test", "b.test", "a.test:81", "c.test:81"])
def test_python_reads_names_alike(host, exceptions):
    ours = proxy_of(f"http://{host}/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": exceptions}) is None
    assert ours == bool(proxy_bypass_environment(host, {"http": "http://p:1", "no": exceptions}))


def test_a_proxy_of_another_protocol_is_refused_with_the_remedy():
    environment = {"ALL_PROXY": "socks5h://user:secret@p:1080"}
    with pytest.raises(
        ConfigError, match=r"ALL_PROXY names.*'socks5h'.*a\.test.*Allowed: http, https.*NO_PROXY"
    ) as error:
        proxy_of("https://a.test", environment)
    assert "secret" not in str(error.value)
    assert proxy_of("https://127.0.0.1:1", environment) is None


LIBRARIES = """
import asyncio, sys, urllib.request
name, url = sys.argv[1:]
def with_urllib(): urllib.request.urlopen(url).read()
def with_httpx():
    import httpx
    httpx.get(url).read()
def with_requests():
    import requests
    requests.get(url).raise_for_status()
def with_aiohttp():
    import aiohttp
    async def get():
        async with aiohttp.ClientSession(trust_env=True) as client, client.get(url) as answer:
            await answer.read()
    asyncio.run(get())
globals()["with_" + name]()
"""


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("library", ["urllib", "httpx", "requests", "aiohttp"])
def test_libraries_in_child_processes_decide_alike(library, variable, proxy):
    pytest.importorskip("urllib" if library == "urllib" else library)
    environment = child_environment({**os.environ, variable: proxy.url, "NO_PROXY": "elsewhere.test,[2001:db8::1]"})
    with counting_proxy(ANSWER) as origin:
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{origin.server_port}/own"
            subprocess.run([sys.executable, "-c", LIBRARIES, library, url], env=environment, check=True)
        assert (len(origin.asked), proxy.asked) == (2, [])
    if library in ("urllib", "aiohttp") and variable.upper() == "ALL_PROXY":
        return  # they read no such variable
    outside = [sys.executable, "-c", LIBRARIES, library, "http://outside.test/"]
    subprocess.run(outside, env=environment, check=True)
    assert proxy.asked == [("GET", "http://outside.test/")]


def test_an_empty_variable_in_lower_case_wins():
    given = {"https_proxy": "", "HTTPS_PROXY": "http://proxy.test:1"}
    assert proxy_of("https://example.com", given) is None
    assert proxy_of("https://example.com", child_environment(given)) is None
    assert child_environment(given)["HTTPS_PROXY"] == ""


def test_an_impossible_port_is_refused():
    with pytest.raises(ConfigError, match=r"the port of 'example\.com:99999' is not allowed. Allowed: 1 to 65535"):
        proxy_of("http://me:secret@example.com:99999/", {})


def test_both_spellings_reach_child_processes():
    given = {"https_proxy": "http://p:1", "NO_PROXY": "a.test", "no_proxy": "b.test", "PATH": "/bin"}
    found = child_environment(given)
    assert found["HTTPS_PROXY"] == found["https_proxy"] == "http://p:1" and found["PATH"] == "/bin"
    assert found["NO_PROXY"] == found["no_proxy"]
    assert {"a.test", "b.test", "localhost", "127.0.0.1", "::1", "0.0.0.0"} <= set(found["NO_PROXY"].split(","))
    assert child_environment(found) == found
    assert child_environment({"PATH": "/bin", "NO_PROXY": "a"}) == {"PATH": "/bin", "NO_PROXY": "a"}
    assert child_environment({"http_proxy": "p", "no_proxy": "a,*"})["NO_PROXY"] == "*"
    settle_proxies(given)
    assert given == found


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_clients_use_the_proxy_for_servers_outside(variable, proxy, monkeypatch):
    monkeypatch.setenv(variable, proxy.url)
    server = f"http://openenv{proxy.server_port}.test"  # schemas are read once for each server
    assert asyncio.run(EndpointJudge("http://judge.test/v1", "m")("a", "b", "c")) == 1.0
    assert HttpRetriever(["http://search.test"], 5.0).search("capital", 1)[0].title == "Paris"
    assert transport().submit(transport().request("GET", "http://env.test/info")).result() == ANSWER
    with pytest.raises(EnvError, match="no session: Invalid response status"):  # the proxy makes no tunnel
        play = OpenEnv(server)
        asyncio.run(play.reset(play.tasks("train")[0]))
    assert [url for _, url in proxy.asked] == [
        "http://judge.test/v1/chat/completions",
        "http://search.test/retrieve",
        "http://env.test/info",
        f"{server}/schema",
        f"{server}/metadata",
        f"{server}/ws",
    ]


def test_clients_use_no_proxy_for_servers_of_this_machine(proxy, monkeypatch):
    for name in VARIABLES[:3]:
        monkeypatch.setenv(name, proxy.url)
    with counting_proxy(ANSWER) as origin:
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{origin.server_port}"
            assert asyncio.run(EndpointJudge(f"{url}/v1", "m")("a", "b", "c")) == 1.0
            assert HttpRetriever([url], 5.0).search("capital", 1)[0].title == "Paris"
            assert transport().submit(transport().request("GET", f"{url}/info")).result() == ANSWER
        assert (len(origin.asked), proxy.asked) == (6, [])
