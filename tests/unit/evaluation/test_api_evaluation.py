"""Test evaluations of models behind an API: episodes, records, pending episodes, resuming, and bad settings."""

import asyncio
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from tests.support.api_evaluations import KINDS, evaluated, guess_by_call, prepared
from tests.support.model_server import KEY, Fault, ModelServer, Said, error
from verl_agent.errors import ConfigError
from verl_agent.evaluation.job import Evaluation
from verl_agent.evaluation.run import play_pending, report_results


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_behind_an_api_plays_and_its_turns_have_usage(tmp_path, kind):
    with ModelServer().running() as server:
        evaluation = evaluated(tmp_path, server, kind)
    records = evaluation.records()
    assert [record["success"] for record in records] == [True] * 4
    assert {record["model"] for record in records} == {f"{kind}:fake"}
    usage, dropped = records[0]["turns"][0]["usage"], ["seed"] if kind == "anthropic" else []
    assert (usage["model"], usage["cost_usd"], usage["dropped"]) == ("fake-2026", None, dropped)
    assert usage["input_tokens"] and records[0]["turns"][0]["tokens"] == usage["output_tokens"]


@pytest.mark.parametrize("kind", KINDS)
def test_functions_are_called_in_the_protocol_of_the_server(tmp_path, kind):
    with ModelServer(guess_by_call).running() as server:
        records = evaluated(tmp_path, server, kind, agent="tools").records()
    assert [record["success"] for record in records] == [True] * 4
    long = max(records, key=lambda record: len(record["turns"]))
    assert len(long["turns"]) > 1
    assert long["turns"][0]["reply"].startswith('<tool_call>\n{"name": "act", "arguments": {"action":')
    names = [tool["function"]["name"] if kind == "openai" else tool["name"] for tool in server.bodies[0]["tools"]]
    assert names == ["act"]


def test_a_text_instead_of_a_call_costs_a_turn_and_the_episode_goes_on(tmp_path):
    def model(messages: list[Said]) -> Any:
        return guess_by_call(messages) if len(messages) > 2 else "Let me think."

    for kind in KINDS:
        with ModelServer(model).running() as server:
            records = evaluated(tmp_path / kind, server, kind, agent="tools").records()
        assert all(record["success"] and record["turns"][0]["action"] is None for record in records)


def test_every_sample_asks_for_its_own_reply(tmp_path):
    with ModelServer(lambda messages: "Action: 1").running() as server:
        evaluated(tmp_path, server, samples=3, max_tasks=1)
    first = [body["seed"] for body in server.bodies if len(body["messages"]) == 2]
    assert len(set(first)) == 3


def test_a_reply_at_the_token_limit_ends_the_episode(tmp_path):
    def answer(usage: dict[str, int]) -> Fault:
        choice = {"message": {"role": "assistant", "content": "Thought: long"}, "finish_reason": "length"}
        return Fault(body={"choices": [choice], "usage": usage})

    with ModelServer(faults=[answer({"prompt_tokens": 9, "completion_tokens": 64}), answer({})]).running() as server:
        records = evaluated(tmp_path, server, max_tasks=2, concurrency=1).records()
    assert [(record["stop"], record["turns"][0]["tokens"]) for record in records] == [
        ("turn_tokens", 64),
        ("turn_tokens", 64),
    ]


OBSERVATION = 10
"""Tokens of an observation, as the fake server counts them."""


def test_the_episode_ends_at_its_token_budget_as_the_server_counts(tmp_path):
    with ModelServer(lambda messages: "Action: 1").running() as server:
        (record,) = evaluated(
            tmp_path,
            server,
            max_tasks=2,
            concurrency=1,
            episode={"max_tokens_per_turn": 30},
            data={"max_response_length": 60},
        ).records()[1:]
    assert record["stop"] == "episode_tokens"
    last = record["turns"][-1]["usage"]
    assert last["input_tokens"] - record["turns"][0]["usage"]["input_tokens"] <= 60 + OBSERVATION
    assert server.bodies[-1]["max_tokens"] < 30


def test_a_temperature_that_the_server_does_not_allow_stops_the_evaluation(tmp_path):
    fault = error(400, "Expected a value <= 2, but got 2.5.", param="temperature")
    with (
        ModelServer(faults=[fault] * 2).running() as server,
        pytest.raises(ConfigError, match=r"evaluation\.temperature=2\.5 is not allowed by 'fake' at .*but got 2\.5"),
    ):
        evaluated(tmp_path, server, temperature=2.5, concurrency=1)


def test_a_prompt_that_the_model_cannot_read_is_recorded_as_overlong(tmp_path):
    fault = error(400, "The input is longer than the model's context length.")
    with ModelServer(faults=[fault]).running() as server:
        records = evaluated(tmp_path, server, concurrency=1).records()
    assert [record["stop"] for record in records] == ["overlong_prompt", *["terminated"] * 3]
    assert records[0]["turns"] == []


def test_episodes_without_a_reply_stay_pending_and_are_played_by_the_next_start(tmp_path):
    with ModelServer(faults=[None, error(503, "Down.")]).running() as server:
        with pytest.raises(ConfigError, match=r"^1 episode is pending, because 'fake' at http.* status 503: Down"):
            evaluated(tmp_path, server, concurrency=1)
        evaluation = evaluated(tmp_path, server, concurrency=1)
    records = evaluation.records()
    assert len(records) == 4 and all(record["success"] for record in records)


def test_an_evaluation_stops_when_the_server_is_down(tmp_path):
    with ModelServer(faults=[error(503, "Down.")] * 50).running() as server:
        with pytest.raises(ConfigError, match=r"^3 episodes in a row got no reply\. The last error: 'fake' at"):
            evaluated(tmp_path, server, max_tasks=None, concurrency=2)
        assert len(server.all_bodies) <= 4
    assert prepared(tmp_path, {"base_url": f"{server.url}/v1"}, max_tasks=None).records() == []


def test_a_folder_without_episodes_and_replies_takes_other_settings_and_one_with_a_reply_does_not(tmp_path):
    prepared(tmp_path, {"base_url": "http://127.0.0.1:9/v1"})
    with ModelServer().running() as server:
        evaluated(tmp_path, server, max_tasks=1)
    other = {"base_url": "http://127.0.0.1:9/v1"}
    with pytest.raises(ConfigError, match=r"another evaluation: model\.api\.base_url was"):
        prepared(tmp_path, other)
    (tmp_path / "episodes.jsonl").unlink()  # a reply that was paid for remains
    with pytest.raises(ConfigError, match=r"another evaluation: model\.api\.base_url was"):
        prepared(tmp_path, other)


def test_a_budget_that_ends_keeps_the_episodes_and_a_higher_one_goes_on(tmp_path):
    prices = {"input": 1000.0, "output": 2000.0}
    with ModelServer().running() as server:
        with pytest.raises(ConfigError, match=r"^evaluation\.max_usd=2 is reached"):
            evaluated(tmp_path, server, api={"prices": prices}, max_usd=2.0, max_tasks=None)
        evaluation = evaluated(tmp_path, server, api={"prices": prices}, max_usd=99.0, max_tasks=None)
    report_results(evaluation, console := Console(record=True, width=120, file=StringIO()))
    assert len(evaluation.records()) == evaluation.planned
    costs = [turn["usage"]["cost_usd"] for record in evaluation.records() for turn in record["turns"]]
    shown = console.export_text()
    assert f"{len(costs)} replies of fake-2026: " in shown and f" {sum(costs):.4f} USD" in shown


def test_an_interrupted_evaluation_resumes_inside_its_episodes_and_leaks_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)

    async def stop_after(evaluation: Evaluation, server: ModelServer, replies: int) -> None:
        play = asyncio.create_task(play_pending(evaluation, Console(quiet=True)))
        while len(server.bodies) < replies:
            await asyncio.sleep(0.001)
        play.cancel()
        await asyncio.gather(play, return_exceptions=True)

    with ModelServer(key=KEY, delay_s=0.01).running() as server:
        api = {"base_url": f"{server.url}/v1", "key_env": "MY_KEY"}
        first = prepared(tmp_path / "out", api, concurrency=2, max_tasks=8)
        asyncio.run(stop_after(first, server, replies=7))
        assert 0 < len(first.records()) < 8
        evaluation = evaluated(tmp_path / "out", server, api=api, concurrency=2, max_tasks=8)
        report_results(evaluation, console := Console(record=True, file=StringIO()))
    assert [record["success"] for record in evaluation.records()] == [True] * 8
    distinct = {str((body["messages"], body["seed"])) for body in server.bodies}
    assert len(server.bodies) - len(distinct) <= 2, "only the two requests in flight are asked twice"
    files = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert {"episodes.jsonl", "replies.jsonl", "settings.json", "evaluation.json"} <= {path.name for path in files}
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in console.export_text()


@pytest.mark.parametrize(
    ("api", "more", "message"),
    [
        ({"base_url": None}, {}, r"environment variable OPENAI_API_KEY with the key for https://api\.openai\.com/v1"),
        ({"kind": "anthropic", "base_url": None}, {}, "environment variable ANTHROPIC_API_KEY"),
        ({"key_env": "NO_SUCH_KEY"}, {}, r"environment variable NO_SUCH_KEY .* is not set\. Run `export NO_SUCH_KEY="),
        ({"kind": "azure"}, {}, r"model\.api\.kind='azure' is not allowed\. Allowed: openai, anthropic or null"),
        ({"name": None}, {}, r"model\.api\.name is missing\."),
        ({}, {"model": {"path": "oracle"}}, r"model\.path='oracle' and model\.api\.kind='openai' both name the policy"),
        ({"base_url": "localhost:8000"}, {}, r"model\.api\.base_url='localhost:8000' is not allowed"),
        ({"base_url": "http://me:pass@host/v1"}, {}, r"has a user, a password or a query \(its value is not shown\)"),
        ({"options": {"temperature": 1}}, {}, r"model\.api\.options\.temperature .* Set evaluation\.temperature"),
        ({"options": {"stream": True}}, {}, r"model\.api\.options\.stream is not allowed"),
        (
            {"options": {"api_key": "x"}},
            {},
            r"model\.api\.options\.api_key is not allowed, since settings are recorded",
        ),
        ({"max_output_token": 4}, {}, r"Did you mean 'max_output_tokens'"),
        ({"prices": {"input": 1.0}}, {}, r"model\.api\.prices has input=1\.0 and output=None\. Set both"),
        ({"prices": {"cached_input": 1.0}}, {}, "cached_input and cache_write need input and output"),
        ({"kind": "anthropic"}, {"temperature": 1.5}, r"evaluation\.temperature=1\.5 is not allowed with .*anthropic"),
        ({}, {"max_usd": 0.0}, r"evaluation\.max_usd=0\.0 is not allowed\. Allowed: a number > 0 or null"),
        ({}, {"max_usd": 1.0}, r"does not list 'fake' of http://127\.0\.0\.1:1/v1\. Set model\.api\.prices\.input"),
    ],
)
def test_invalid_settings_raise_config_error_before_a_folder_is_made(tmp_path, monkeypatch, api, more, message):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path / "out", {"base_url": "http://127.0.0.1:1/v1", **api}, **more)
    assert not (tmp_path / "out").exists()


def test_a_key_in_place_of_the_name_of_its_variable_is_not_shown(tmp_path):
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path / "out", {"base_url": "http://127.0.0.1:1/v1", "key_env": KEY})
    assert "its value is not shown" in str(caught.value) and KEY not in str(caught.value)


def test_a_model_without_functions_stops_with_the_remedy(tmp_path):
    with (
        ModelServer(faults=[error(400, "fake does not support tools")]).running() as server,
        pytest.raises(ConfigError, match=r"does not call functions, which agent\.name=tools needs .*agent\.name=react"),
    ):
        evaluated(tmp_path, server, agent="tools", concurrency=1)


def test_a_resumed_evaluation_keeps_the_model_and_may_change_prices(tmp_path):
    server = {"base_url": "http://127.0.0.1:1/v1"}
    prepared(tmp_path, server)
    prepared(tmp_path, {**server, "prices": {"input": 1.0, "output": 2.0}, "retries": 3}, max_usd=5.0)
    (tmp_path / "replies.jsonl").write_text('{"key": "a", "reserved_usd": 1.0}\n')
    with pytest.raises(ConfigError, match=r"model\.api\.options\.reasoning_effort was None, is now 'low'"):
        prepared(tmp_path, {**server, "options": {"reasoning_effort": "low"}})
    with pytest.raises(ConfigError, match=r"model was 'openai:fake', is now 'openai:other'"):
        prepared(tmp_path, {**server, "name": "other"})
