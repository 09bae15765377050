"""Tests of the HTTP server against slow, many and foreign connections, with real sockets."""

import json
import resource
import socket
import time
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest

from env_adapters.guess_number.adapter import GuessNumber
from tests.support.fakes import talk_class
from tests.support.serving import HTTP, RunningEnv, begin, error_of, pool_of, post, serving
from tests.support.waiting import wait_until
from verl_agent.envs.http.connections import REFUSED
from verl_agent.envs.http.run_server import OTHER_FILES, allow_connections
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.errors import ConfigError

HEAD = b"POST /create HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\n"


def guess(**limits):
    return serving("guess_number", pool_of(GuessNumber), limits=ServerLimits(**limits))


def connect(running: RunningEnv) -> socket.socket:
    url = urlsplit(running.url)
    assert url.hostname is not None
    return socket.create_connection((url.hostname, url.port), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def send_slowly(connection: socket.socket, content: bytes) -> None:
    """Send a byte every 50 ms until the server answers or the content ends."""
    connection.setblocking(False)
    for index in range(len(content)):
        try:
            connection.send(content[index : index + 1])
            connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            break
        else:
            break
    connection.settimeout(20)


@pytest.mark.parametrize(
    ("at_once", "slowly"),
    [(b"", b""), (b"", HEAD * 9), (HEAD + b"Content-Length: 900\r\n\r\n", b"x" * 900), (HEAD + b"\r\n" + HEAD, b"")],
    ids=["nothing", "headers", "body", "second request"],
)
def test_a_request_that_arrives_too_slowly_is_answered_408_and_its_connection_closed(at_once, slowly):
    with guess(receive_s=0.3) as running, closing(connect(running)) as connection:
        started = time.monotonic()
        connection.sendall(at_once)
        send_slowly(connection, slowly)
        answer = read_all(connection)
        assert time.monotonic() - started < 10
        assert b"HTTP/1.1 408 Request Timeout" in answer
        assert answer.endswith(b'{"error": "the request did not arrive within 0.3 s."}')


@pytest.mark.parametrize(
    "head",
    [HEAD + b"X: " + b"a" * 5000 + b"\r\n\r\n", HEAD + b"X: " + b"a" * 200_000, HEAD + b"X: y\r\n" * 4000 + b"\r\n"],
    ids=["long", "without end", "many"],
)
def test_headers_above_the_limit_are_refused_with_the_limit(head):
    with guess(header_bytes=4096) as running:
        with closing(connect(running)) as connection:
            connection.sendall(head)
            answer = read_all(connection)
        assert b"HTTP/1.1 431 Request Header Fields Too Large" in answer and b"at most 4096 bytes" in answer
        assert begin(running)


def test_a_body_that_arrives_after_the_answer_has_the_same_deadline():
    """The token is checked before the body has arrived."""
    pool, limits = pool_of(GuessNumber), ServerLimits(receive_s=0.3)
    with serving("guess_number", pool, limits=limits, token="t") as running, closing(connect(running)) as connection:
        connection.sendall(HEAD + b"Content-Length: 900\r\n\r\n")
        assert b"HTTP/1.1 401 " in read_all(connection)


def test_a_slow_answer_and_an_idle_connection_are_within_the_deadline():
    with serving(
        "guess_number", pool_of(talk_class(), {"fault": "hang", "seconds": 0.5}), limits=ServerLimits(receive_s=0.2)
    ) as running:
        session = begin(running)
        slow = json.dumps({"id": session, "bare_action": "sleep"}).encode()
        with closing(connect(running)) as connection:
            for _ in range(2):
                started = time.monotonic()
                connection.sendall(HEAD.replace(b"create", b"step") + b"Content-Length: %d\r\n\r\n" % len(slow) + slow)
                answer = b""
                while not answer.endswith(b"}"):
                    answer += connection.recv(65536)
                assert answer.startswith(b"HTTP/1.1 200 OK")
                assert time.monotonic() - started > 0.2
                time.sleep(0.4)


def test_connections_above_the_limit_are_refused_and_the_others_served():
    with guess(connections=4) as running, ExitStack() as open_connections:
        held = [open_connections.enter_context(closing(connect(running))) for _ in range(4)]
        answers = []
        for connection in (held[0], open_connections.enter_context(closing(connect(running)))):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: server\r\n\r\n")
            answers.append(connection.recv(65536) if connection is held[0] else read_all(connection))
        assert answers[0].startswith(b"HTTP/1.1 200 OK")
        assert answers[1].startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answers[1]
        assert answers[1].endswith(b'{"error": "too many connections. Close one, or try again later."}')


def test_a_refused_connection_gives_its_slot_back():
    with guess(connections=1) as running:
        with closing(connect(running)) as held:
            held.sendall(b"GET /health HTTP/1.1\r\nHost: server\r\n\r\n")
            assert held.recv(65536).startswith(b"HTTP/1.1 200 OK")
            with closing(connect(running)) as refused:
                refused.sendall(b"GET /health HTTP/1.1\r\nHost: server\r\n\r\n")
                assert read_all(refused).startswith(b"HTTP/1.1 503 ")
        wait_until(lambda: HTTP.get(running.url + "/health").status_code != 503, 20)


def test_a_flood_of_connections_is_closed_without_an_answer():
    with guess(connections=1) as running, ExitStack() as flood:
        for _ in range(REFUSED + 1):
            flood.enter_context(closing(connect(running)))
        assert read_all(flood.enter_context(closing(connect(running)))) == b""


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", None])
def test_a_body_that_is_not_declared_as_json_is_rejected(kind):
    """A web page may send other types to any server without asking it first."""
    with guess() as running:
        headers = {} if kind is None else {"Content-Type": kind}
        answer = HTTP.post(running.url + "/reset", content=b'{"id": 1, "data_idx": 0}', headers=headers)
        assert error_of(answer, 415).startswith("Content-Type must be application/json, got")
        charset = {"Content-Type": "application/json; charset=utf-8"}
        assert HTTP.post(running.url + "/create", content=b"{}", headers=charset).status_code == 200


@pytest.mark.parametrize("origin", ["http://attacker.example", "null", "http://127.0.0.1:8000"])
def test_requests_of_web_pages_are_refused(origin):
    with guess() as running:
        answer = post(running, "/create", headers={"Origin": origin})
        assert error_of(answer, 403).startswith("requests of web pages are refused")
        assert len(running.server.sessions) == 0


def test_a_path_with_a_slash_at_the_end_is_not_redirected_to_the_host_of_the_request():
    with guess() as running:
        answer = HTTP.get(running.url + "/info/", headers={"Host": "attacker.example"}, follow_redirects=False)
        assert error_of(answer, 404) == "there is no such call: /info/."
        assert "location" not in answer.headers


def test_more_connections_than_open_files_raise_config_error():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this machine has no limit of open files")
    with pytest.raises(ConfigError, match=f"--connections {hard} needs .* open files, and this machine allows {hard}"):
        allow_connections(hard)
    allow_connections(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > REFUSED + OTHER_FILES
