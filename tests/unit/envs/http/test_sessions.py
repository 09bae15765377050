"""Tests of the HTTP server's sessions: errors of environments, concurrent calls, idle sessions and draining."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from env_adapters.guess_number.adapter import GuessNumber
from env_adapters.textcraft.adapter import TextCraft
from tests.support.serving import HTTP, begin, error_of, pool_of, post, serving, talking
from tests.support.waiting import wait_until
from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.link import HostLink
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.types import StepResult

TRAIN = TextCraft().tasks("train")


class Gated(GuessNumber):
    """GuessNumber whose steps wait until an event is set; each test creates a subclass with its own event."""

    gate: threading.Event

    async def step(self, action: str) -> StepResult:
        assert self.gate.wait(250)
        return await super().step(action)


@contextmanager
def gated(timeout_s: float = 250):
    """Serve an environment whose steps wait for an event."""
    gate = threading.Event()
    try:
        with serving("guess_number", pool_of(type("Gated", (Gated,), {"gate": gate}), timeout_s=timeout_s)) as running:
            yield running, gate
            gate.set()
    finally:
        gate.set()


def busy_sessions(running):
    return {session.number for session in running.server.sessions.open_ones if session.busy}


# Errors of the environment


def test_an_exception_of_the_environment_is_a_500_with_its_message():
    with talking(fault="raise") as running:
        session = begin(running)
        message = error_of(post(running, "/step", {"id": session, "action": "x"}), 500)
        assert message.startswith("step failed: KeyError: 'observation' (")
        assert post(running, "/close", {"id": session}).status_code == 200


def test_a_failed_reset_leaves_a_session_without_a_task():
    with talking(fault="raise", where="reset") as running:
        session = post(running, "/create").json()["id"]
        error_of(post(running, "/reset", {"id": session, "data_idx": 0}), 500)
        error_of(post(running, "/step", {"id": session, "action": "x"}), 409)


def test_a_timeout_of_the_environment_is_a_504_and_ends_the_session():
    with gated(timeout_s=0.5) as (running, _):
        session = post(running, "/create").json()["id"]
        while post(running, "/reset", {"id": session, "data_idx": 0}).status_code == 504:  # on a busy machine
            session = post(running, "/create").json()["id"]
        assert error_of(post(running, "/step", {"id": session, "action": "x"}), 504) == "step took more than 0.5 s"
        error_of(post(running, "/step", {"id": session, "action": "x"}), 404)
        assert len(running.server.sessions) == 0


def test_a_bug_in_the_server_is_a_500_without_the_message():
    class Broken(HostPool):
        async def open(self) -> int:
            raise ZeroDivisionError("secret")

    async def no_host() -> HostLink:
        raise NotImplementedError

    with serving("guess_number", Broken(no_host, Hosting(), PoolLimits())) as running:
        reason = error_of(post(running, "/create"), 500)
        assert reason == "internal error, see the log of the server: ZeroDivisionError."
        assert HTTP.get(running.url + "/health").status_code == 200


def test_a_full_pool_is_a_503_with_retry_after(guess):
    sessions = [post(guess, "/create").json()["id"] for _ in range(4)]
    full = post(guess, "/create")
    assert error_of(full, 503).startswith("no slot for another session became free in 0.1 s")
    assert full.headers["retry-after"] == "1"
    post(guess, "/close", {"id": sessions[0]})
    assert post(guess, "/create").status_code == 200


def test_the_server_limits_the_number_of_sessions():
    with talking(limits=ServerLimits(sessions=2)) as running:
        assert [post(running, "/create").status_code for _ in range(3)] == [200, 200, 503]


# Concurrent calls


def test_a_second_call_of_a_busy_session_is_rejected():
    with gated() as (running, gate), ThreadPoolExecutor() as threads:
        session, other = begin(running), begin(running)
        steps = [threads.submit(post, running, "/step", {"id": one, "action": "99"}) for one in (session, other)]
        wait_until(lambda: busy_sessions(running) == {session, other})
        reason = error_of(post(running, "/step", {"id": session, "action": "x"}), 409)
        assert reason.startswith(f"another call of session {session} is still running.")
        error_of(post(running, "/reset", {"id": session, "data_idx": 0}), 409)
        gate.set()
        assert [step.result().json()["observation"] for step in steps] == ["Lower.", "Lower."]
        assert post(running, "/step", {"id": session, "action": "99"}).json()["observation"] == "Lower."


def test_a_session_can_be_closed_during_a_step():
    with gated() as (running, gate), ThreadPoolExecutor() as threads:
        session = begin(running)
        step = threads.submit(post, running, "/step", {"id": session, "action": "99"})
        wait_until(lambda: busy_sessions(running) == {session})
        assert post(running, "/close", {"id": session}).status_code == 200
        error_of(post(running, "/step", {"id": session, "action": "x"}), 404)
        gate.set()
        step.result()
        assert len(running.server.sessions) == 0


def test_a_session_is_closed_if_its_client_disconnected_while_waiting():
    with serving("guess_number", pool_of(GuessNumber, slots=1, wait_s=100)) as running:
        first = post(running, "/create").json()["id"]
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(running.url + "/create", timeout=0.3)
        assert post(running, "/close", {"id": first}).status_code == 200
        wait_until(lambda: running.pool.stats()["opened"] == 2 and running.pool.stats()["sessions"] == 0)
        assert len(running.server.sessions) == 0


def test_32_clients_at_once(textcraft):
    def play(index: int) -> float:
        session = begin(textcraft, index)
        moves = TextCraft().demonstration(TRAIN[index])
        steps = [post(textcraft, "/step", {"id": session, "action": move.action}).json() for move in moves]
        post(textcraft, "/close", {"id": session})
        return float(steps[-1]["score"])

    before = len(textcraft.server.sessions)
    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(play, range(32))) == [1.0] * 32
    assert len(textcraft.server.sessions) == before


# State, idle sessions and shutdown


def test_stats_and_metrics_count_calls_and_sessions(guess):
    session = begin(guess)
    post(guess, "/step", {"id": session, "action": "99"})
    post(guess, "/step", {"id": 1, "action": "99"})
    stats = HTTP.get(guess.url + "/stats").json()
    assert {name: stats[name] for name in ("env", "split", "open_sessions", "running_sessions", "pool_opened")} == {
        "env": "guess_number",
        "split": "train",
        "open_sessions": 1,
        "running_sessions": 1,
        "pool_opened": 1,
    }
    answer = HTTP.get(guess.url + "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    for line in (
        'verl_agent_requests_total{call="step",status="200"} 1.0',
        'verl_agent_requests_total{call="step",status="404"} 1.0',
        'verl_agent_request_seconds_count{call="step"} 2.0',
        "verl_agent_open_sessions 1.0",
        "verl_agent_pool_opened 1.0",
    ):
        assert line in answer.text.splitlines()


def test_idle_sessions_are_closed():
    with talking(limits=ServerLimits(idle_s=0.2)) as running:
        post(running, "/create")
        wait_until(lambda: running.pool.stats()["sessions"] == 0)
        assert running.pool.stats()["opened"] == 1
        assert len(running.server.sessions) == 0


def test_a_call_restarts_the_idle_time_and_a_call_that_runs_stops_it():
    limits = ServerLimits(idle_s=0.6)
    with talking(limits=limits, fault="hang", where="step", seconds=1.5) as running:
        session = begin(running)
        for _ in range(3):
            threading.Event().wait(0.3)
            assert HTTP.get(f"{running.url}/observation?id={session}").status_code == 200
        assert post(running, "/step", {"id": session, "action": "sleep"}).status_code == 200
        assert len(running.server.sessions) == 1
        wait_until(lambda: len(running.server.sessions) == 0)


def test_a_draining_server_ends_running_episodes_and_begins_no_further_ones():
    with talking(turns=2) as running:
        playing, ended = begin(running), begin(running)
        opened = post(running, "/create").json()["id"]
        for _ in range(2):
            post(running, "/step", {"id": ended, "action": "x"})
        running.draining_server.drain()
        full = post(running, "/create")
        assert error_of(full, 503) == "this server is stopping. Use another one."
        assert full.headers["retry-after"] == "1"
        error_of(HTTP.get(running.url + "/health"), 503)
        assert "begins no further episode" in error_of(post(running, "/reset", {"id": ended, "data_idx": 0}), 503)
        assert post(running, "/reset", {"id": opened, "data_idx": 0}).status_code == 200
        for session in (playing, opened):
            assert [post(running, "/step", {"id": session, "action": "x"}).json()["done"] for _ in range(2)] == [0, 1]
        running.join()
        assert running.pool.stats()["hosts"] == 0


def test_a_draining_server_stops_after_the_drain_time():
    with talking(limits=ServerLimits(drain_s=0.2)) as running:
        begin(running)
        running.draining_server.drain()
        running.join()
        assert running.pool.stats()["hosts"] == 0
