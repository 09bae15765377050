"""Test the client of models behind an API against a server that fails: retries, refused settings, budget, replies."""

import asyncio
import json
import re
import time
from pathlib import Path

import pytest

from tests.support.model_server import KEY, Fault, ModelServer, error
from verl_agent.envs.model_api.chat import ApiReply, ChatMessage, ChatRequest
from verl_agent.envs.model_api.client import ApiClient, ContextLimitError
from verl_agent.envs.model_api.reply_log import ReplyLog, totals
from verl_agent.envs.model_api.settings import ApiSettings, Prices, api_settings
from verl_agent.envs.model_api.traffic import Traffic
from verl_agent.errors import AgentError, ConfigError, ReplyUnavailableError, RequestRefusedError
from verl_agent.types import Usage

KINDS = ("openai", "anthropic")
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "seed": 5}
REQUEST = ChatRequest([ChatMessage("user", "From 1 to 9")], max_tokens=8, sampling=SAMPLING)


def settings(server: ModelServer, kind: str = "openai", **api) -> ApiSettings:
    """Return settings for a server, without pauses between retries worth mentioning."""
    base = server.url + ("/v1" if kind == "openai" else "")
    values = {"kind": kind, "name": "fake", "base_url": base, "timeout_s": 5.0, "retries": 2, **api}
    made = api_settings(values, None)
    assert made is not None
    return made


def ask(
    server: ModelServer,
    folder: Path,
    api: ApiSettings,
    max_usd: float | None = None,
    count: int = 1,
    request: ChatRequest = REQUEST,
    chosen: bool = False,
) -> list[ApiReply | AgentError]:
    """Ask `count` different requests at once, in a client of its own; return replies and errors."""

    async def run() -> list[ApiReply | AgentError]:
        log = ReplyLog(folder / "replies.jsonl")
        try:
            async with ApiClient(api, log, max_usd, first_wait_s=0.01, chosen=chosen) as client:
                asked = [client.ask(request, position) for position in range(count)]
                found = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            log.close()
        assert all(isinstance(one, ApiReply | AgentError) for one in found), found
        return [one for one in found if isinstance(one, ApiReply | AgentError)]

    return asyncio.run(run())


def broken_off(finish: str, **fields: object) -> Fault:
    """Return an answer with a reply that the server could not end."""
    message = {"role": "assistant", "content": "Action:"}
    return Fault(body={"choices": [{"finish_reason": finish, "message": message, **fields}]})


DISCONNECTED = broken_off("error", error={"code": 502, "message": "Provider disconnected"})
BROKEN = [
    DISCONNECTED,
    *map(broken_off, ("error", "abort", "insufficient_system_resource", "network_error")),
    Fault(body={"error": "upstream failed"}),
    error(429, "Slow down."),
    error(500, "Internal error."),
    error(529, "Overloaded."),
    Fault(body="<html>Bad gateway</html>", status=502),
    Fault(body='{"choices": [{"mess'),
    Fault(body="[]"),
    Fault(body={"choices": [], "content": None}),
    Fault(body={"choices": [{"message": None}], "content": [7]}),
    Fault(body={"error": {"message": "upstream failed", "code": 502}}),
    Fault(body="x" * 200, cut=True),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: f"{fault.status}-{str(fault.body)[:20]}-{fault.cut}")
def test_a_failure_that_may_pass_is_asked_again(tmp_path, kind, fault):
    with ModelServer(faults=[fault, fault]).running() as server:
        (answer,) = ask(server, tmp_path, settings(server, kind))
    assert isinstance(answer, ApiReply)
    assert answer.text == "Action: 5"
    assert len(server.all_bodies) == 3
    assert server.all_bodies[0] == server.all_bodies[2]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (DISCONNECTED, "status 502: Provider disconnected"),
        (broken_off("abort"), "it broke the reply off: abort"),
        (Fault(body={"error": "upstream failed"}), "status 500: upstream failed"),
    ],
)
def test_a_failure_inside_an_answer_is_told_in_the_words_of_the_server(tmp_path, fault, message):
    with ModelServer(faults=[fault]).running() as server:
        (failed,) = ask(server, tmp_path, settings(server, retries=0))
    assert isinstance(failed, ReplyUnavailableError) and str(failed).endswith(message)


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_reaches_no_server(tmp_path, kind):
    """Servers that check texts refuse it, and local engines read a question mark."""
    shown = [
        ChatMessage("user", "From 1 to 9 \ud83d"),
        ChatMessage("assistant", "3 \udc00"),
        ChatMessage("user", "Low"),
    ]
    with ModelServer(lambda messages: "Action: 5").running() as server:
        (answer,) = ask(server, tmp_path, settings(server, kind), request=ChatRequest(shown, 8, {}))
    assert isinstance(answer, ApiReply)
    assert [message["content"] for message in server.bodies[0]["messages"]] == ["From 1 to 9 ?", "3 ?", "Low"]


def test_requests_that_wait_are_reported_and_counted(tmp_path):
    """A storm of refusals: the first one is told at once, with its reason and the time of the next request."""
    told: list[str] = []
    traffic = Traffic(told.append)
    faults = [error(429, "Slow \x1b[31mdown.", Retry_After="1.2") for _ in range(3)]

    async def run() -> None:
        log = ReplyLog(tmp_path / "replies.jsonl")
        async with ApiClient(settings(server), log, first_wait_s=0.01, traffic=traffic) as client:
            await asyncio.gather(*(client.ask(REQUEST, position) for position in range(3)))
        log.close()

    with ModelServer(faults=faults).running() as server:
        asyncio.run(run())
    assert len(told) == 1 and told[0].startswith(
        "1 request waits, the next is sent in 1 s. The model's server: status 429"
    )
    assert "\x1b" not in told[0]
    state = traffic.describe()
    assert (state["answered"], state["waiting"], sum(state["retried"].values())) == (3, 0, 3)
    assert sum(state["stops"].values()) == 3 and state["output_tokens"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_cannot_be_had_is_an_error_of_its_episode(tmp_path, kind):
    with ModelServer(faults=[error(503, "Down for maintenance.")] * 3).running() as server:
        (failed,) = ask(server, tmp_path, settings(server, kind))
    assert isinstance(failed, ReplyUnavailableError)
    assert "'fake' at http://127.0.0.1" in str(failed)
    assert "gave no reply to 3 requests: status 503: Down for maintenance." in str(failed)


def test_a_server_that_hangs_is_left_after_the_time_limit(tmp_path):
    with ModelServer(faults=[Fault(hang_s=2.0)]).running() as server:
        started = time.monotonic()
        (answer,) = ask(server, tmp_path, settings(server, timeout_s=0.2))
    assert isinstance(answer, ApiReply)
    assert time.monotonic() - started < 2.0


def test_a_server_that_is_not_there_is_named(tmp_path):
    with ModelServer().running() as server:
        api = settings(server, retries=0)
    (failed,) = ask(server, tmp_path, api)
    assert isinstance(failed, ReplyUnavailableError)
    assert "gave no reply to 1 request: it cannot be reached (connection refused). Start the server" in str(failed)
    assert str(failed).endswith("or correct model.api.base_url.") and "ssl:" not in str(failed)
    assert totals(tmp_path / "replies.jsonl").lost == 0


def test_all_requests_wait_as_long_as_the_server_asks(tmp_path):
    with ModelServer(faults=[error(429, "Slow down.", Retry_After="0.3")]).running() as server:
        started = time.monotonic()
        ask(server, tmp_path, settings(server))
    assert time.monotonic() - started >= 0.3


def test_a_wait_of_hours_is_not_waited_for(tmp_path):
    with ModelServer(faults=[error(429, "Come back tomorrow.", Retry_After="86400")]).running() as server:
        (failed,) = ask(server, tmp_path, settings(server))
    assert isinstance(failed, ReplyUnavailableError) and "asks to wait for 86400 s" in str(failed)


@pytest.mark.parametrize("kind", KINDS)
def test_refused_settings_are_dropped_for_all_requests_and_recorded(tmp_path, kind):
    with ModelServer(refused=["temperature", "seed", "top_p"]).running() as server:
        (first,) = ask(server, tmp_path, settings(server, kind))
        assert isinstance(first, ApiReply)
        assert first.usage.dropped == ("seed", "temperature", "top_p")
        refusals = len(server.all_bodies) - 1
        ask(server, tmp_path, settings(server, kind), count=2)
    assert not set(SAMPLING) & server.bodies[-1].keys()
    assert refusals == (3 if kind == "openai" else 2)  # Anthropic's protocol has no seed to begin with
    assert len(server.all_bodies) == refusals + 2, "a second start repeats neither refusals nor the first request"
    assert totals(tmp_path / "replies.jsonl").dropped == ["seed", "temperature", "top_p"]


TOO_HIGH = error(
    400,
    "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5 instead.",
    "decimal_above_max_value",
    "temperature",
)


def test_a_chosen_value_that_the_server_does_not_allow_stops_and_is_not_dropped(tmp_path):
    with ModelServer(faults=[TOO_HIGH] * 2).running() as server:
        (failed,) = ask(server, tmp_path, settings(server), chosen=True)
    assert isinstance(failed, ConfigError)
    assert re.match(r"evaluation\.temperature=0\.7 is not allowed by 'fake' at .*: status 400: Invalid", str(failed))
    assert str(failed).endswith("but got 2.5 instead. Set a value that the server allows.")
    assert all(body["temperature"] == 0.7 for body in server.all_bodies)


def test_a_value_that_nobody_chose_is_left_out_if_the_server_does_not_allow_it(tmp_path):
    """A judge asks with temperature 0, which some servers refuse."""
    with ModelServer(faults=[TOO_HIGH]).running() as server:
        (answer,) = ask(server, tmp_path, settings(server))
    assert isinstance(answer, ApiReply) and answer.usage.dropped == ("temperature",)


def test_replies_of_another_server_in_the_log_do_not_keep_a_value_that_nobody_chose(tmp_path):
    with ModelServer().running() as other:
        ask(other, tmp_path, settings(other))
    with ModelServer(faults=[TOO_HIGH]).running() as server:
        (answer,) = ask(server, tmp_path, settings(server))
    assert isinstance(answer, ApiReply) and answer.usage.dropped == ("temperature",)


def test_a_message_about_a_range_after_a_reply_ends_its_episode_alone(tmp_path):
    with ModelServer(faults=[None, TOO_HIGH, TOO_HIGH]).running() as server:
        ask(server, tmp_path, settings(server), chosen=True)
        failed = ask(server, tmp_path, settings(server), count=2, chosen=True)[1]
    assert isinstance(failed, RequestRefusedError)


def test_settings_that_are_not_refused_are_sent(tmp_path):
    with ModelServer().running() as server:
        (answer,) = ask(server, tmp_path, settings(server, options={"reasoning_effort": "low"}))
    assert server.bodies[0] == {
        "model": "fake",
        "messages": [{"role": "user", "content": "From 1 to 9"}],
        "max_tokens": 8,
        **SAMPLING,
    }
    assert isinstance(answer, ApiReply) and answer.usage.dropped == ()


def test_a_model_that_wants_the_new_name_of_the_limit_gets_it(tmp_path):
    fault = error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", param="max_tokens")
    with ModelServer(faults=[fault]).running() as server:
        (answer,) = ask(server, tmp_path, settings(server))
    assert server.bodies[0]["max_completion_tokens"] == 8 and "max_tokens" not in server.bodies[0]
    assert isinstance(answer, ApiReply) and answer.usage.dropped == ()


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
        "prompt is too long: 205000 tokens > 200000 maximum",
        "'max_tokens' or 'max_completion_tokens' is too large: 8. This model's maximum context length is 9 tokens.",
    ],
)
def test_a_conversation_without_room_is_told_apart(tmp_path, message):
    with ModelServer(faults=[error(400, message)]).running() as server:
        (failed,) = ask(server, tmp_path, settings(server))
    assert isinstance(failed, ContextLimitError) and len(server.all_bodies) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (error(429, "You exceeded your current quota.", "insufficient_quota"), "no quota left .status 429: You excee"),
        (error(400, "Your credit balance is too low."), "no quota left"),
        (error(402, "Payment required."), "no quota left"),
        (Fault(429, {"error": {"details": {"error_code": "contract_spend_limit_reached"}}}), "no quota left"),
        (error(403, "Your organization must be verified."), "refuses a request without a key; set model.api.key_env"),
        (error(404, "The model `fake` does not exist."), "does not exist.*Check model.api.name, model.api.base_url"),
        (Fault(301, "moved", {"Location": "http://127.0.0.1:1/elsewhere"}), "status 301: moved"),
    ],
)
def test_a_failure_that_would_repeat_stops_at_once(tmp_path, fault, message):
    with ModelServer(faults=[fault]).running() as server:
        (failed,) = ask(server, tmp_path, settings(server))
    assert isinstance(failed, ConfigError)
    assert re.search(message, str(failed)), str(failed)
    assert len(server.all_bodies) == 1


def test_a_request_refused_twice_after_others_succeeded_ends_its_episode(tmp_path):
    with ModelServer(faults=[None, *[error(400, "Your request was flagged.")] * 2]).running() as server:
        ask(server, tmp_path, settings(server))
        failed = ask(server, tmp_path, settings(server), count=2)[1]
    assert isinstance(failed, RequestRefusedError)
    assert re.match(r"content filter: .* refuses a request: status 400: Your request was", str(failed))


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_key_stops_and_is_not_shown(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("MY_KEY", "sk-wrong-8841aaef0021")
    with ModelServer(key=KEY).running() as server:
        (failed,) = ask(server, tmp_path, settings(server, kind, key_env="MY_KEY"))
    assert isinstance(failed, ConfigError)
    assert "the server refuses the key in MY_KEY (status 401: Incorrect API key provided: ***" in str(failed)
    assert "8841" not in str(failed) + repr(failed)


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_key_is_sent_and_nowhere_written(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("MY_KEY", KEY)
    with ModelServer(key=KEY).running() as server:
        (answer,) = ask(server, tmp_path, settings(server, kind, key_env="MY_KEY"))
    assert isinstance(answer, ApiReply)
    assert KEY not in (tmp_path / "replies.jsonl").read_text()


def test_an_equal_request_is_asked_once_per_position(tmp_path):
    with ModelServer().running() as server:
        first = ask(server, tmp_path, settings(server), count=2)
        second = ask(server, tmp_path, settings(server), count=3)
    assert second[:2] == first
    assert len(server.bodies) == 3


def test_an_unfinished_line_of_a_killed_start_is_asked_again(tmp_path):
    file = tmp_path / "replies.jsonl"
    with ModelServer().running() as server:
        ask(server, tmp_path, settings(server), count=2)
        file.write_text(file.read_text()[:-30])
        ask(server, tmp_path, settings(server), count=2)
    assert len(server.bodies) == 3


PRICES = Prices(input=1000.0, output=2000.0)
"""Prices at which a token costs a tenth of a cent."""


def test_a_reply_has_its_tokens_and_its_cost(tmp_path):
    with ModelServer().running() as server:
        (answer,) = ask(server, tmp_path, settings(server, prices=PRICES))
    assert isinstance(answer, ApiReply)
    read, written = answer.usage.input_tokens, answer.usage.output_tokens
    assert read and written and answer.usage.cost_usd == pytest.approx(read * 1e-3 + written * 2e-3)
    assert answer.usage.model == "fake-2026"


def test_a_cost_without_usage_or_prices_is_unknown_and_not_0(tmp_path):
    with ModelServer(usage=False).running() as server:
        answers = ask(server, tmp_path / "a", settings(server, prices=PRICES))
    with ModelServer().running() as server:
        answers += ask(server, tmp_path / "b", settings(server))
    assert [one.usage.cost_usd for one in answers if isinstance(one, ApiReply)] == [None, None]
    assert totals(tmp_path / "a" / "replies.jsonl").cost_usd is None
    assert totals(tmp_path / "a" / "replies.jsonl").unknown_costs == 1


def test_a_budget_below_the_cost_of_one_request_is_too_low_and_not_reached(tmp_path):
    with ModelServer().running() as server:
        (refused,) = ask(server, tmp_path, settings(server, prices=PRICES), max_usd=0.001)
    assert server.bodies == []
    assert str(refused).startswith("evaluation.max_usd=0.001 is too low for the next request, which may cost 1.")


def test_the_budget_reserves_what_requests_in_flight_may_cost(tmp_path):
    """One request may cost 1.2 USD and costs about 0.06; two at once do not fit into 1.5 USD."""
    with ModelServer(delay_s=0.02).running() as server:
        found = ask(server, tmp_path, settings(server, prices=PRICES), max_usd=1.5, count=20)
    answers, errors = ([one for one in found if isinstance(one, kind)] for kind in (ApiReply, ConfigError))
    assert server.most_in_flight == 1
    assert len(answers) > 1 and errors and len(answers) + len(errors) == 20
    assert str(errors[0]).startswith("evaluation.max_usd=1.5 is reached: ")
    spent = totals(tmp_path / "replies.jsonl").cost_usd
    assert spent is not None and spent == pytest.approx(sum(one.usage.cost_usd or 0 for one in answers))
    assert spent <= 1.5


def test_a_second_start_counts_what_the_first_one_spent(tmp_path):
    with ModelServer().running() as server:
        api = settings(server, prices=PRICES)
        ask(server, tmp_path, api, max_usd=2.0)
        reserved, spent = map(json.loads, (tmp_path / "replies.jsonl").read_text().splitlines())
        assert 0 < spent["charged_usd"] < reserved["reserved_usd"]
        max_usd = reserved["reserved_usd"] + spent["charged_usd"] / 2
        found = ask(server, tmp_path, api, max_usd, count=2)
    assert [type(one) for one in found] == [ApiReply, ConfigError]


@pytest.mark.parametrize("fault", [Fault(hang_s=0.5), Fault(body="{", cut=True), Fault(body="{")])
def test_a_request_without_an_answer_is_charged_in_full(tmp_path, fault):
    """The vendor may have charged it, so the budget must not be spent twice."""
    with ModelServer(faults=[fault]).running() as server:
        found = ask(server, tmp_path, settings(server, prices=PRICES, timeout_s=0.2), max_usd=2.0)
    assert isinstance(found[0], ConfigError), found
    assert totals(tmp_path / "replies.jsonl").lost == 1


def test_a_refused_request_is_not_charged(tmp_path):
    with ModelServer(faults=[error(500, "Error")] * 2).running() as server:
        found = ask(server, tmp_path, settings(server, prices=PRICES), max_usd=2.0)
    assert isinstance(found[0], ApiReply)


def test_a_request_that_a_kill_interrupted_is_charged_in_full(tmp_path):
    line = {"key": "a", "reserved_usd": 0.5}
    (tmp_path / "replies.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(line)}\n")
    assert ReplyLog(tmp_path / "replies.jsonl").spent_usd == 1.0


@pytest.mark.parametrize("torn", [b"\0" * 20, b'{"key": "\xe2', b"null"])
def test_a_torn_line_of_replies_is_named_unless_it_is_the_unfinished_last_one(tmp_path, torn):
    file, whole = tmp_path / "replies.jsonl", b'{"key": "a", "reserved_usd": 0.5}\n'
    file.write_bytes(whole + torn + b"\n" + whole)
    for read in (ReplyLog, totals):
        with pytest.raises(ConfigError, match=r"replies\.jsonl:2: .*Remove the line to read the rest"):
            read(file)
    file.write_bytes(whole + torn)
    assert ReplyLog(file).spent_usd == 0.5


def test_requests_in_flight_when_an_evaluation_was_killed_are_lost(tmp_path):
    """A killed process settles nothing: each open reservation may have been charged."""
    file = tmp_path / "replies.jsonl"
    for keys in ("abc", "ad"):  # the second start sends one of them again
        log = ReplyLog(file)
        for key in keys:
            log.begin(key, 0.5)
        log.close()
    log = ReplyLog(file)
    log.end("a", 0.1, ApiReply("go", {}, truncated=False, usage=Usage(cost_usd=0.1, finish="content_filter")))
    log.close()
    found = totals(file)
    assert found.lost == 4  # a of the first start, b, c and d
    assert (found.replies, found.unknown_costs, found.input_tokens, found.output_tokens) == (1, 4, None, None)
    assert found.finishes == {"content_filter": 1}
