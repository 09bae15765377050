"""Tests that invalid requests are answered with a reason and disturb no other session."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from env_adapters.deepsearch.adapter import DeepSearch
from env_adapters.textcraft.adapter import TextCraft
from tests.support.scripts import scripts
from tests.support.serving import RunningEnv, pool_of, serving
from verl_agent.commands.cli import app

HTTP = httpx.Client(timeout=250)
SCRIPT = max(scripts("textcraft", "test", 20), key=lambda script: len(script.actions))
TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningEnv]:
    with serving("textcraft", pool_of(TextCraft), split="test", token="secret") as running:
        yield running


def post(running: RunningEnv, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    return HTTP.post(running.url + path, content=content, headers=kind | (TOKEN if headers is None else headers))


def begun(running: RunningEnv) -> int:
    session = post(running, "/create", {}).json()["id"]
    assert post(running, "/reset", {"id": session, "data_idx": SCRIPT.item}).status_code == 200
    return session


def wrong_requests(fresh: int, ended: int, foreign: int) -> list[tuple[str, Any, dict[str, str] | None, int]]:
    """Return path, body, headers and status of one request of each kind; test_protocol.py has further ones."""
    step = {"id": fresh, "action": "inventory"}
    return [
        ("/step", step, None, 409),  # before the first reset
        ("/step", {"id": ended, "action": "inventory"}, None, 200),  # allowed after the end, with reward 0; see below
        ("/step", {"id": foreign, "action": "inventory"}, None, 404),
        ("/close", {"id": foreign}, None, 404),
        ("/step", {"id": 2**63, "action": "inventory"}, None, 422),
        ("/reset", {"id": fresh, "data_idx": 10**30}, None, 422),
        ("/step", b"[" * 50_000, None, 400),
        ("/close", step, {"Authorization": "Bearer wrong"}, 401),
        ("/nothing", {}, None, 404),
    ]


def test_invalid_requests_do_not_disturb_another_session(guarded):
    with serving("textcraft", pool_of(TextCraft), split="test", token="secret") as other:
        foreign = begun(other)
    undisturbed, disturbed, ended = begun(guarded), begun(guarded), begun(guarded)
    fresh = post(guarded, "/create", {}).json()["id"]
    for action in SCRIPT.actions:
        last = post(guarded, "/step", {"id": ended, "action": action}).json()
    assert last["done"]
    wrong = wrong_requests(fresh, ended, foreign)
    requests = cycle(wrong)
    for action in SCRIPT.actions:
        expected = post(guarded, "/step", {"id": undisturbed, "action": action}).json()
        for _ in range(3):
            path, body, headers, status = next(requests)
            answer = post(guarded, path, body, headers)
            assert answer.status_code == status, (path, body, answer.text)
            assert len(answer.text) < 1_000
            if status == 200:
                assert (answer.json()["reward"], answer.json()["done"]) == (0.0, True)
            else:
                assert list(answer.json()) == ["error"]
        assert post(guarded, "/step", {"id": disturbed, "action": action}).json() == expected
    assert expected["done"] and expected["score"] == 1.0
    assert 3 * len(SCRIPT.actions) >= len(wrong), "not every wrong request was sent"


def test_concurrent_calls_of_a_session_are_carried_out_once_or_rejected(guarded):
    session = begun(guarded)
    body = {"id": session, "action": "get 1 birch log"}
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: post(guarded, "/step", body).status_code, range(200)))
    accepted = answers.count(200)
    assert set(answers) <= {200, 409} and accepted >= 1
    inventory = post(guarded, "/step", {"id": session, "action": "inventory"}).json()["observation"]
    assert inventory == f"Inventory: [birch log] ({accepted})"


def test_deep_search_without_a_corpus_answers_the_command_that_builds_one(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_AGENT_CACHE", str(tmp_path))
    with serving("deepsearch", pool_of(DeepSearch)) as running:
        session = post(running, "/create", {}).json()["id"]
        answer = post(running, "/reset", {"id": session, "data_idx": 0})
        assert answer.status_code == 501
        assert "python -m env_adapters.deepsearch build" in answer.json()["error"]
        assert post(running, "/step", {"id": session, "action": "x"}).status_code == 409
        assert HTTP.get(f"{running.url}/health").status_code == 200


def test_serve_reports_a_missing_requirement_at_start(tmp_path):
    variables = {"VERL_AGENT_TOKEN": None, "VERL_AGENT_CACHE": str(tmp_path)}
    done = CliRunner().invoke(app, ["serve", "deepsearch", "--port", "0"], env=variables)
    message = "python -m env_adapters.deepsearch build"
    assert (done.exit_code, message in " ".join(done.output.split())) == (2, True), done.output
