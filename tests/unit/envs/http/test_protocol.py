"""Tests of the HTTP server's protocol: AgentGym's clients, invalid requests and access control."""

import json

import pytest

from env_adapters.guess_number.adapter import GuessNumber
from env_adapters.textcraft.adapter import TextCraft
from tests.support.agentgym import CLIENTS
from tests.support.fakes import words_of
from tests.support.serving import HTTP, begin, error_of, pool_of, post, serving, talking
from verl_agent.envs.http.auth import check_token, is_loopback
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.errors import ConfigError

TRAIN = TextCraft().tasks("train")
JSON = {"Content-Type": "application/json"}


# Clients of AgentGym


def test_textcraft_client_of_agentgym_solves_20_goals(textcraft):
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
def test_each_client_of_agentgym_solves_a_task(guess, name):
    """The clients of search and web send whole replies, the others send only the action."""
    items = GuessNumber().tasks("train")
    client = CLIENTS[name](guess.url)
    assert client.reset(41).strip() == "Your first guess?"
    replies = words_of(GuessNumber(), items[41])
    played = [client.step(reply) for reply in replies]
    assert played[-1] == ("Right.", 1.0, True)
    assert all(step[1:] == (0.0, False) for step in played[:-1])
    assert client.close() == {"closed": True}


def test_id_sends_an_action_and_env_idx_a_whole_reply():
    with serving("guess_number", pool_of(GuessNumber)) as strict:
        session = begin(strict)
        action = post(strict, "/step", {"id": session, "action": "50"}).json()
        whole = post(strict, "/step", {"env_idx": session, "action": "Halve it.\nAction: 50"}).json()
        bare = post(strict, "/step", {"env_idx": session, "action": "50"}).json()
    assert action["observation"] == whole["observation"] == "Lower."
    assert (bare["observation"], bare["info"]) == ("That is no whole number.", {"invalid_action": 1.0})


def test_score_sums_rewards_and_restarts_with_each_task():
    with serving("guess_number", pool_of(GuessNumber)) as running:
        session = begin(running)
        right = {"id": session, "action": str(GuessNumber().tasks("train")[0].data["target"])}
        first, after = (post(running, "/step", right).json() for _ in range(2))
        assert [(one["reward"], one["score"], one["done"]) for one in (first, after)] == [(1, 1, True), (0, 1, True)]
        post(running, "/reset", {"id": session, "data_idx": 0})
        assert post(running, "/step", right).json()["score"] == 1.0


def test_numbers_refer_to_the_split_and_names_to_all_splits():
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
        assert "nothing" in error_of(HTTP.get(running.url + "/tasks?split=nothing"), 422)


def test_session_ids_are_random_63_bit_numbers(guess):
    sessions = [post(guess, "/create").json()["id"] for _ in range(4)]
    assert all(2**40 < session < 2**63 for session in sessions)  # a random number is below 2**40 once in eight million
    assert len(set(sessions)) == 4


def test_root_and_health_name_the_environment(guess):
    assert HTTP.get(guess.url).json() == "This is environment guess_number."
    assert HTTP.get(guess.url + "/health").json() == {"status": "healthy", "env": "guess_number"}


# Invalid requests


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/step", {"id": 1, "action": "x"}, 404, "it was closed, was idle too long, or never existed."),
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
        ("/step", {"id": 1, "action": "x" * 2_097_153}, 422, "has 2097153 characters. Allowed: at most 2097152."),
        ("/step", [1, "x"], 422, 'the body must be a JSON object, got [1, "x"].'),
        ("/create", {"goal": "minecraft:bed"}, 422, "goal cannot be set: choose an item of the environment"),
        ("/nothing", {}, 404, "there is no such call: /nothing."),
    ],
)
def test_invalid_requests_get_a_status_and_a_reason(textcraft, path, body, status, reason):
    assert reason in error_of(post(textcraft, path, body), status)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "the item is missing: send its name as item, or its number as data_idx."),
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
def test_unknown_items_are_rejected(textcraft, body, reason):
    session = post(textcraft, "/create").json()["id"]
    answer = error_of(post(textcraft, "/reset", {"id": session, **body}), 422)
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
    ids=["one brace", "form data", "unclosed", "binary", "nested", "digits"],
)
def test_a_body_that_is_not_json_is_rejected(textcraft, raw):
    assert "the body is not JSON: " in error_of(HTTP.post(textcraft.url + "/step", content=raw, headers=JSON), 400)


def test_invalid_unicode_is_rejected(textcraft):
    session = begin(textcraft)
    raw = json.dumps({"id": session, "action": "get 1 \ud800"})
    assert "not valid Unicode" in error_of(HTTP.post(textcraft.url + "/step", content=raw, headers=JSON), 422)


@pytest.mark.parametrize("text", ["", "get 1 log\x00", "取得 1 橡木原木", "🪵" * 1000, "9" * 5000, "</s>{%s%n}\u202e"])
def test_unusual_actions_reach_the_environment(textcraft, text):
    session = begin(textcraft)
    answer = post(textcraft, "/step", {"id": session, "action": text})
    assert answer.status_code == 200
    assert len(answer.json()["observation"]) < 200


def test_a_large_body_is_rejected_with_and_without_content_length():
    limits = ServerLimits(body_bytes=10_000)
    with talking(limits=limits) as running:
        body = json.dumps({"id": 1, "action": "x" * 3_000_000}).encode()
        chunks = (body[start : start + 65536] for start in range(0, len(body), 65536))
        for content in (body, chunks):
            reason = error_of(HTTP.post(running.url + "/step", content=content), 413)
            assert reason == "the body is too large. Allowed: at most 10000 bytes."
        assert HTTP.get(running.url + "/health").status_code == 200


def test_a_wrong_method_is_rejected(textcraft):
    assert error_of(HTTP.get(textcraft.url + "/create"), 405) == "GET is not allowed for this call: /create."


@pytest.mark.parametrize("query", ["", "?id=", "?id=x", "?id=-1", "?id=1.5", "?id=" + "9" * 30, "?env_idx=٣"])
def test_an_invalid_session_id_in_a_query_is_rejected(textcraft, query):
    assert "id must be the number" in error_of(HTTP.get(textcraft.url + "/observation" + query), 422)


def test_step_and_observation_before_the_first_task_are_rejected(guess):
    session = post(guess, "/create").json()["id"]
    expected = f"session {session} has no task yet. Begin one with reset."
    assert error_of(post(guess, "/step", {"id": session, "action": "1"}), 409) == expected
    assert error_of(HTTP.get(f"{guess.url}/observation?id={session}"), 409) == expected


def test_closing_a_session_leaves_the_others_open(guess):
    first, second = begin(guess), begin(guess)
    assert post(guess, "/close", {"id": first}).json() == {"closed": True}
    error_of(post(guess, "/close", {"id": first}), 404)
    error_of(post(guess, "/step", {"id": first, "action": "1"}), 404)
    assert post(guess, "/step", {"id": second, "action": "1"}).status_code == 200


# Access control


def test_calls_without_the_token_are_rejected():
    with talking(token="open-sesame") as running:
        for headers, reason in (
            ({}, "a token is needed: send the header Authorization: Bearer <token>."),
            ({"Authorization": "Bearer wrong"}, "the token is wrong."),
            ({"Authorization": "bearer open-sesame"}, "the token is wrong."),
            ({"Authorization": "open-sesame"}, "the token is wrong."),
            ({"Authorization": b"Bearer \xe9"}, "the token is wrong."),
        ):
            answer = HTTP.get(running.url + "/stats", headers=headers)
            assert error_of(answer, 401) == reason
            assert answer.headers["www-authenticate"] == "Bearer"
        error_of(post(running, "/create"), 401)
        error_of(HTTP.get(running.url + "/metrics"), 401)
        error_of(HTTP.get(running.url + "/nothing"), 401)
        assert HTTP.get(running.url + "/health").status_code == 200
        assert post(running, "/create", headers={"Authorization": "Bearer open-sesame"}).status_code == 200


def test_a_server_that_other_machines_reach_needs_a_token():
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
