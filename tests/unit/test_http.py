"""The HTTP server: AgentGym's clients play on it, and whatever is wrong is answered with a status and a reason."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from env_adapters.guess_number.adapter import GuessNumber
from env_adapters.textcraft.adapter import TextCraft
from tests.support.agentgym import CLIENTS
from tests.support.fakes import talk_class, words_of
from tests.support.serving import RunningEnv, pool_of, serving
from verl_agent.commands.cli import app
from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.link import HostLink
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.http.auth import check_token, is_loopback
from verl_agent.envs.http.limits import Limits
from verl_agent.envs.http.run_server import bind
from verl_agent.envs.http.session_table import SessionTable
from verl_agent.errors import ConfigError
from verl_agent.types import StepResult

ROOT = Path(__file__).parents[2]
HTTP = httpx.Client(timeout=250)
TRAIN = TextCraft().tasks("train")


@pytest.fixture(scope="module")
def textcraft():
    with serving("textcraft", pool_of(TextCraft)) as running:
        yield running


@pytest.fixture
def guess():
    with serving("guess_number", pool_of(GuessNumber, {"tolerant": True}, places=4)) as running:
        yield running


def talking(timeout_s: float = 250, limits: Limits | None = None, token: str | None = None, **options: Any):
    """A server whose environment fails on demand."""
    return serving("guess_number", pool_of(talk_class(), options, timeout_s=timeout_s), limits=limits, token=token)


def post(running: RunningEnv, path: str, body: Any = None, **options: Any) -> httpx.Response:
    return HTTP.post(running.url + path, json=body, **options)


def begin(running: RunningEnv, item: Any = 0) -> int:
    """A session that plays."""
    session = post(running, "/create").json()["id"]
    answer = post(running, "/reset", {"id": session, "data_idx": item})
    assert answer.status_code == 200, answer.text
    return session


def refused(answer: httpx.Response, status: int) -> str:
    """The reason of a refusal."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    return answer.json()["error"]


# AgentGym's clients


def test_agentgyms_textcraft_client_solves_20_goals(textcraft):
    client = CLIENTS["textcraft"](textcraft.url)
    for index in range(0, 440, 22):
        observation = client.reset(index)
        assert observation.startswith("Crafting commands:\n")
        assert observation == client.observe()
        steps = [client.step(reply) for reply in words_of(TextCraft(), TRAIN[index])]
        assert [(reward, done) for _, reward, done in steps[-2:]] == [(0, False), (1, True)]
        assert steps[-1][0] == f"Crafted {steps[-1][0].split()[1]} {TRAIN[index].data['goal']}"
    client.close()


@pytest.mark.parametrize("name", list(CLIENTS))
def test_each_of_agentgyms_clients_finds_what_it_reads(guess, name):
    """The replies are whole for search and web, and the action alone for the others; all of them are understood."""
    items = GuessNumber().tasks("train")
    client = CLIENTS[name](guess.url)
    assert client.reset(41).strip() == "Your first guess?"
    replies = words_of(GuessNumber(), items[41])
    played = [client.step(reply) for reply in replies]
    assert played[-1] == ("Right.", 1.0, True)
    assert all(step[1:] == (0.0, False) for step in played[:-1])
    assert client.close() == {"closed": True}


def test_the_action_alone_and_the_whole_reply_are_told_apart():
    with serving("guess_number", pool_of(GuessNumber)) as strict:
        session = begin(strict)
        alone = post(strict, "/step", {"id": session, "action": "50"}).json()
        whole = post(strict, "/step", {"env_idx": session, "action": "Halve it.\nAction: 50"}).json()
        bare = post(strict, "/step", {"env_idx": session, "action": "50"}).json()
    assert alone["observation"] == whole["observation"] == "Lower."
    assert (bare["observation"], bare["info"]) == ("That is no whole number.", {"invalid_action": 1.0})


def test_the_score_is_the_sum_of_the_rewards_and_begins_anew_with_each_task():
    with serving("guess_number", pool_of(GuessNumber)) as running:
        session = begin(running)
        right = {"id": session, "action": str(GuessNumber().tasks("train")[0].data["target"])}
        first, after = (post(running, "/step", right).json() for _ in range(2))
        assert [(one["reward"], one["score"], one["done"]) for one in (first, after)] == [(1, 1, True), (0, 1, True)]
        post(running, "/reset", {"id": session, "data_idx": 0})
        assert post(running, "/step", right).json()["score"] == 1.0


def test_items_have_numbers_in_the_chosen_split_and_names_in_all():
    with serving("guess_number", pool_of(GuessNumber), split="test") as running:
        session = post(running, "/create").json()["id"]
        for body, target in (
            ({"data_idx": 1}, 2),
            ({"item": "100:1"}, 1),
            ({"data_idx": "100:3"}, 3),
            ({"item": "5:4"}, 4),
        ):
            assert post(running, "/reset", {"id": session, **body}).status_code == 200
            assert post(running, "/step", {"id": session, "action": str(target)}).json()["done"]
        assert running.server.tasks.describe()["splits"] == {
            "train": 390,
            "test": 130,
            "small_train": 51,
            "small_test": 17,
        }
        listed = HTTP.get(running.url + "/tasks?split=small_test").json()
        assert listed[0] == {"id": "7:1", "category": "1 to 7"}
        assert "nothing" in refused(HTTP.get(running.url + "/tasks?split=nothing"), 422)


def test_sessions_are_random_numbers_of_63_bits(guess):
    sessions = [post(guess, "/create").json()["id"] for _ in range(4)]
    assert all(2**40 < session < 2**63 for session in sessions)  # a random one below 2**40 is one in eight million
    assert len(set(sessions)) == 4


def test_it_says_what_it_is(guess):
    assert HTTP.get(guess.url).json() == "This is environment guess_number."
    assert HTTP.get(guess.url + "/health").json() == {"status": "ok", "env": "guess_number"}


# What is refused


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/step", {"id": 1, "action": "x"}, 404, "there is no session 1: it was closed, idled too long, or never was."),
        ("/reset", {"id": 1, "data_idx": 0}, 404, "there is no session 1"),
        ("/close", {"id": 1}, 404, "there is no session 1"),
        ("/step", {"action": "x"}, 422, "id is missing: the number that /create returned. env_idx means the same."),
        ("/step", {"id": "1", "action": "x"}, 422, 'id must be the number that /create returned, got "1".'),
        ("/step", {"id": True, "action": "x"}, 422, "got true."),
        ("/step", {"id": 1.0, "action": "x"}, 422, "got 1.0."),
        ("/step", {"id": -1, "action": "x"}, 422, "got -1."),
        ("/step", {"id": 2**63, "action": "x"}, 422, "must be the number"),
        ("/step", {"id": {"id": 1}, "action": "x"}, 422, "must be the number"),
        ("/step", {"id": 1}, 422, "action must be a text, got null."),
        ("/step", {"id": 1, "action": ["x"]}, 422, 'action must be a text, got ["x"].'),
        ("/step", {"id": 1, "action": 7}, 422, "action must be a text, got 7."),
        ("/step", {"id": 1, "action": "x" * 1_048_577}, 422, "action has 1048577 characters, allowed are 1048576."),
        ("/step", [1, "x"], 422, 'the body must be a JSON object, got [1, "x"].'),
        ("/create", {"goal": "minecraft:bed"}, 422, "goal cannot be set: choose an item of the environment"),
        ("/nothing", {}, 404, "there is no such call: /nothing."),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_reason(textcraft, path, body, status, reason):
    assert reason in refused(post(textcraft, path, body), status)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "the item is missing: item is its name, or data_idx its number."),
        ({"data_idx": 444}, "there is no item 444. Allowed: 0 to 443, the items of split 'train'."),
        ({"data_idx": -1}, "there is no item -1."),
        ({"data_idx": 10**4000}, "there is no item 10000000"),
        ({"data_idx": 1.5}, "data_idx must be the number of an item, or its name, got 1.5."),
        ({"data_idx": "minecraft:bedrock"}, "there is no item 'minecraft:bedrock'. GET /tasks?split=train lists them."),
        ({"item": 3}, "item must be the name of an item, got 3."),
        ({"item": "x" * 1001}, "item must be the name of an item, got"),
        ({"item": ""}, "item must be the name of an item, got"),
    ],
)
def test_items_that_do_not_exist_are_refused(textcraft, body, reason):
    session = post(textcraft, "/create").json()["id"]
    answer = refused(post(textcraft, "/reset", {"id": session, **body}), 422)
    assert reason in answer
    assert len(answer) < 200
    assert post(textcraft, "/close", {"id": session}).status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"id=1&action=x",
        b'{"id": 1, "action": "x"',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"id": ' + b"9" * 5000 + b"}",
    ],
    ids=["cut", "a form", "not closed", "binary", "nested", "digits"],
)
def test_what_is_not_json_is_refused(textcraft, raw):
    assert "the body is not JSON: " in refused(HTTP.post(textcraft.url + "/step", content=raw), 400)


def test_text_that_is_no_text_is_refused(textcraft):
    session = begin(textcraft)
    raw = json.dumps({"id": session, "action": "get 1 \ud800"})
    assert "not valid Unicode" in refused(HTTP.post(textcraft.url + "/step", content=raw), 422)


@pytest.mark.parametrize("text", ["", "get 1 log\x00", "取得 1 橡木原木", "🪵" * 1000, "9" * 5000, "</s>{%s%n}\u202e"])
def test_odd_actions_are_played(textcraft, text):
    session = begin(textcraft)
    answer = post(textcraft, "/step", {"id": session, "action": text})
    assert answer.status_code == 200
    assert len(answer.json()["observation"]) < 200


def test_a_body_that_is_too_large_is_refused_whether_announced_or_not():
    limits = Limits(body_bytes=10_000)
    with talking(limits=limits) as running:
        body = json.dumps({"id": 1, "action": "x" * 3_000_000}).encode()
        chunks = (body[start : start + 65536] for start in range(0, len(body), 65536))
        for content in (body, chunks):
            reason = refused(HTTP.post(running.url + "/step", content=content), 413)
            assert reason == "the body is larger than the 10000 bytes that are allowed."
        assert HTTP.get(running.url + "/health").status_code == 200


def test_a_wrong_method_says_so(textcraft):
    assert refused(HTTP.get(textcraft.url + "/create"), 405) == "GET does not fit this call: /create."


@pytest.mark.parametrize("query", ["", "?id=", "?id=x", "?id=-1", "?id=1.5", "?id=" + "9" * 30, "?env_idx=٣"])
def test_a_query_that_names_no_session_is_refused(textcraft, query):
    assert "id must be the number" in refused(HTTP.get(textcraft.url + "/observation" + query), 422)


def test_before_the_first_task_there_is_nothing_to_step_or_observe(guess):
    session = post(guess, "/create").json()["id"]
    wanted = f"session {session} plays no task yet. Begin one with /reset."
    assert refused(post(guess, "/step", {"id": session, "action": "1"}), 409) == wanted
    assert refused(HTTP.get(f"{guess.url}/observation?id={session}"), 409) == wanted


def test_a_closed_session_is_unknown_and_the_others_play_on(guess):
    first, second = begin(guess), begin(guess)
    assert post(guess, "/close", {"id": first}).json() == {"closed": True}
    refused(post(guess, "/close", {"id": first}), 404)
    refused(post(guess, "/step", {"id": first, "action": "1"}), 404)
    assert post(guess, "/step", {"id": second, "action": "1"}).status_code == 200


# Faults behind the server


def test_an_environment_that_raises_is_a_502_with_its_words():
    with talking(fault="raise") as running:
        session = begin(running)
        message = refused(post(running, "/step", {"id": session, "action": "x"}), 502)
        assert message.startswith("step failed: KeyError: 'observation' (")
        assert post(running, "/close", {"id": session}).status_code == 200


def test_an_environment_that_cannot_begin_leaves_a_session_without_a_task():
    with talking(fault="raise", where="reset") as running:
        session = post(running, "/create").json()["id"]
        refused(post(running, "/reset", {"id": session, "data_idx": 0}), 502)
        refused(post(running, "/step", {"id": session, "action": "x"}), 409)


def test_an_environment_that_hangs_is_a_504_and_its_session_is_over():
    with gated(timeout_s=0.5) as (running, _):
        session = post(running, "/create").json()["id"]
        while post(running, "/reset", {"id": session, "data_idx": 0}).status_code == 504:  # on a busy machine
            session = post(running, "/create").json()["id"]
        assert refused(post(running, "/step", {"id": session, "action": "x"}), 504) == "step took more than 0.5 s"
        refused(post(running, "/step", {"id": session, "action": "x"}), 404)
        assert len(running.server.book) == 0


def test_a_fault_of_the_server_itself_is_a_500_that_names_no_details():
    class Broken(HostPool):
        async def open(self) -> int:
            raise ZeroDivisionError("secret")

    async def no_host() -> HostLink:
        raise NotImplementedError

    with serving("guess_number", Broken(no_host, Hosting(), PoolLimits())) as running:
        reason = refused(post(running, "/create"), 500)
        assert reason == "this server has a fault, see its log: ZeroDivisionError."
        assert HTTP.get(running.url + "/health").status_code == 200


def test_a_full_pool_is_a_503_that_says_when_to_come_back(guess):
    sessions = [post(guess, "/create").json()["id"] for _ in range(4)]
    full = post(guess, "/create")
    assert refused(full, 503).startswith("no slot for another session became free in 0.1 s")
    assert full.headers["retry-after"] == "1"
    post(guess, "/close", {"id": sessions[0]})
    assert post(guess, "/create").status_code == 200


def test_a_server_has_a_limit_of_its_own():
    with talking(limits=Limits(sessions=2)) as running:
        assert [post(running, "/create").status_code for _ in range(3)] == [200, 200, 503]


# One session, several callers


class Gated(GuessNumber):
    """Answers no step before the gate opens; tests make a class with a gate of its own."""

    gate: threading.Event

    async def step(self, action: str) -> StepResult:
        assert self.gate.wait(250)
        return await super().step(action)


@contextmanager
def gated(timeout_s: float = 250):
    """A server whose steps wait for a gate."""
    gate = threading.Event()
    try:
        with serving("guess_number", pool_of(type("Gated", (Gated,), {"gate": gate}), timeout_s=timeout_s)) as running:
            yield running, gate
            gate.set()
    finally:
        gate.set()


def until(what: Callable[[], object]) -> None:
    """Wait for something that happens soon."""
    end = time.monotonic() + 200
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_two_clients_of_one_session_do_not_play_at_once():
    with gated() as (running, gate), ThreadPoolExecutor() as threads:
        session, other = begin(running), begin(running)
        steps = [threads.submit(post, running, "/step", {"id": one, "action": "99"}) for one in (session, other)]
        until(lambda: running.server.book.session(session).busy and running.server.book.session(other).busy)
        reason = refused(post(running, "/step", {"id": session, "action": "x"}), 409)
        assert reason == f"another call of session {session} is still running. A session plays one at a time."
        refused(post(running, "/reset", {"id": session, "data_idx": 0}), 409)
        gate.set()
        assert [step.result().json()["observation"] for step in steps] == ["Lower.", "Lower."]
        assert post(running, "/step", {"id": session, "action": "99"}).json()["observation"] == "Lower."


def test_a_session_can_be_closed_while_it_plays():
    with gated() as (running, gate), ThreadPoolExecutor() as threads:
        session = begin(running)
        step = threads.submit(post, running, "/step", {"id": session, "action": "99"})
        until(lambda: running.server.book.session(session).busy)
        assert post(running, "/close", {"id": session}).status_code == 200
        refused(post(running, "/step", {"id": session, "action": "x"}), 404)
        gate.set()
        step.result()
        assert len(running.server.book) == 0


def test_a_session_that_nobody_waits_for_any_more_is_not_kept():
    with serving("guess_number", pool_of(GuessNumber, places=1, wait_s=100)) as running:
        first = post(running, "/create").json()["id"]
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(running.url + "/create", timeout=0.3)
        assert post(running, "/close", {"id": first}).status_code == 200
        until(lambda: running.pool.stats()["opened"] == 2 and running.pool.stats()["sessions"] == 0)
        assert len(running.server.book) == 0


def test_32_clients_at_once(textcraft):
    def play(index: int) -> float:
        session = begin(textcraft, index)
        moves = TextCraft().demonstration(TRAIN[index])
        steps = [post(textcraft, "/step", {"id": session, "action": move.action}).json() for move in moves]
        post(textcraft, "/close", {"id": session})
        return float(steps[-1]["score"])

    before = len(textcraft.server.book)
    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(play, range(32))) == [1.0] * 32
    assert len(textcraft.server.book) == before


# Who may call


def test_with_a_token_only_those_who_know_it_may_call():
    with talking(token="open-sesame") as running:
        for headers, reason in (
            ({}, "a token is needed: send the header Authorization: Bearer <token>."),
            ({"Authorization": "Bearer wrong"}, "the token is wrong."),
            ({"Authorization": "bearer open-sesame"}, "the token is wrong."),
            ({"Authorization": "open-sesame"}, "the token is wrong."),
            ({"Authorization": b"Bearer \xe9"}, "the token is wrong."),
        ):
            answer = HTTP.get(running.url + "/stats", headers=headers)
            assert refused(answer, 401) == reason
            assert answer.headers["www-authenticate"] == "Bearer"
        refused(post(running, "/create"), 401)
        refused(HTTP.get(running.url + "/metrics"), 401)
        refused(HTTP.get(running.url + "/nothing"), 401)
        assert HTTP.get(running.url + "/health").status_code == 200
        assert post(running, "/create", headers={"Authorization": "Bearer open-sesame"}).status_code == 200


def test_a_server_that_others_can_reach_needs_a_token():
    for host in ("0.0.0.0", "::", "10.0.0.7", "node7"):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match=f"--host {host} can be reached from other machines, so a token"):
            check_token(host, None)
        check_token(host, "secret")
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        check_token(host, None)
    for token in ("", "two words", "naïve", "line\n"):
        with pytest.raises(ConfigError, match="visible ASCII characters"):
            check_token("127.0.0.1", token)


# How it is, and how it ends


def test_it_counts_what_it_does(guess):
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


def test_sessions_of_clients_that_are_gone_are_closed():
    with talking(limits=Limits(idle_s=0.2)) as running:
        post(running, "/create")
        until(lambda: running.pool.stats()["sessions"] == 0)
        assert running.pool.stats()["opened"] == 1
        assert len(running.server.book) == 0


def test_a_session_that_is_called_is_not_idle():
    now = [0.0]
    book = SessionTable(Limits(idle_s=10), clock=lambda: now[0])
    for number in (1, 2, 3):
        book.add(number)
    now[0] = 9.0
    with book.call(1):
        now[0] = 30.0
        assert book.expired() == [2, 3]
    assert book.expired() == [2, 3]
    now[0] = 40.5
    assert book.expired() == [1, 2, 3]


def test_a_draining_server_ends_what_runs_and_begins_nothing():
    with talking(turns=2) as running:
        playing, ended = begin(running), begin(running)
        opened = post(running, "/create").json()["id"]
        for _ in range(2):
            post(running, "/step", {"id": ended, "action": "x"})
        running.listener.drain()
        full = post(running, "/create")
        assert refused(full, 503) == "this server is about to stop. Ask another one."
        assert full.headers["retry-after"] == "1"
        refused(HTTP.get(running.url + "/health"), 503)
        assert "no other episode begins" in refused(post(running, "/reset", {"id": ended, "data_idx": 0}), 503)
        assert post(running, "/reset", {"id": opened, "data_idx": 0}).status_code == 200
        for session in (playing, opened):
            assert [post(running, "/step", {"id": session, "action": "x"}).json()["done"] for _ in range(2)] == [0, 1]
        running.join()
        assert running.pool.stats()["hosts"] == 0


def test_a_draining_server_does_not_wait_for_ever():
    with talking(limits=Limits(drain_s=0.2)) as running:
        begin(running)
        running.listener.drain()
        running.join()
        assert running.pool.stats()["hosts"] == 0


SERVE = """
from env_adapters.guess_number.adapter import GuessNumber
from tests.support.serving import pool_of
from verl_agent.envs.http.items import TaskIndex
from verl_agent.envs.http.limits import Limits
from verl_agent.envs.http.run_server import Listener, bind, url_of
from verl_agent.envs.http.server import EnvServer

pool = pool_of(GuessNumber)
listener = bind("127.0.0.1", 0)
print(url_of(listener), flush=True)
Listener(EnvServer(TaskIndex("guess_number", {}, "train"), pool, Limits()), listener).run_here()
print(pool.stats()["opened"], pool.stats()["hosts"])
"""


def test_sigterm_lets_the_last_episode_end():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([sys.executable, "-c", SERVE], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        session = HTTP.post(f"{url}/create").json()["id"]
        HTTP.post(f"{url}/reset", json={"id": session, "data_idx": 0})
        process.send_signal(signal.SIGTERM)
        until(lambda: HTTP.get(f"{url}/health").status_code == 503)
        assert HTTP.post(f"{url}/create").status_code == 503
        assert HTTP.post(f"{url}/step", json={"id": session, "action": "1"}).json()["done"]
        assert process.stdout.read().strip() == "1 0"
        assert process.wait(100) == 0


@pytest.mark.parametrize("field", ["sessions", "body_bytes", "action_chars", "idle_s", "drain_s"])
def test_limits_that_allow_nothing_are_refused(field):
    with pytest.raises(ConfigError, match=f"the limit {field} must be > 0, got 0"):
        Limits(**{field: 0})


# The command


def command(*arguments: str) -> tuple[int, str]:
    """Exit code and what is said of `verl-agent serve`."""
    done = CliRunner().invoke(app, ["serve", *arguments], env={"VERL_AGENT_TOKEN": None})
    return done.exit_code, done.output


def test_a_port_in_use_is_said():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, said = command("guess_number", "--port", str(port))
    assert code == 2
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use. Choose another with --port" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gess_number"], "'gess_number' is not registered. Did you mean 'guess_number'?"),
        (["guess_number", "--host", "0.0.0.0"], "can be reached from other machines, so a token is needed"),
        (["guess_number", "--split", "trian"], "has no split 'trian'. Did you mean 'train'?"),
        (["guess_number", "--options", "{"], "--options is not JSON"),
        (["guess_number", "--options", '{"tolerent": true}'], "Did you mean 'tolerant'?"),
    ],
)
def test_a_server_that_cannot_be_meant_does_not_start(arguments, said):
    code, output = command(*arguments)
    assert (code, said in output) == (2, True), output


def test_an_environment_that_does_not_start_is_said_before_anybody_calls():
    code, output = command("guess_number", "--port", "0", "--options", '{"tolerant": "yes"}')
    assert (code, "env.options.tolerant='yes' is not allowed" in output) == (2, True), output


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"port 8000 of 192\.0\.2\.1 cannot be used"):
        bind("192.0.2.1", 8000)
    with pytest.raises(ConfigError, match=r"--host no\.such\.host\.invalid --port 1 is no address of this machine"):
        bind("no.such.host.invalid", 1)


def test_two_servers_cannot_share_a_port():
    with bind("127.0.0.1", 0) as first, pytest.raises(ConfigError, match="Address already in use"):
        bind("127.0.0.1", first.getsockname()[1])


WITHOUT = "torch ray verl vllm transformers omegaconf hydra matplotlib httpx aiohttp fastapi"


def test_serving_needs_nothing_of_training():
    without = f"import sys; sys.modules.update(dict.fromkeys('{WITHOUT}'.split())); "
    code = f"{without}import verl_agent.commands.cli, verl_agent.commands.serve"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
