"""Tests that pages are evaluated three seconds after loading or after the last action, as in WebArena, but faster."""

import asyncio
import time

import pytest
from aiohttp import web

from env_adapters.webarena.grading.evaluators import LATE_CONTENT_S, FinalState, evaluate
from tests.support.web import SITE, needs_chromium, page, playing, serving
from verl_agent.errors import EnvError

pytestmark = needs_chromium


def after(ms, script):
    return f"<script>setTimeout(() => {{ {script} }}, {ms})</script>"


PAGES = {
    "/": "<h1>Start</h1>",
    "/right": "<p id=x>right</p>",
    "/empty": "<p id=x></p>" + after(600, "x.textContent = 'right'"),
    "/other": "<p id=x>wrong</p>" + after(2500, "x.textContent = 'right'"),
    "/absent": after(600, "document.body.innerHTML = '<p id=x>right</p>'"),
    "/transient": "<p id=x>right</p>" + after(1000, "x.textContent = 'wrong'"),
    "/too_late": "<p id=x>wrong</p>" + after(4000, "x.textContent = 'right'"),
    "/answer": "<p id=x>wrong</p>"
    + after(300, "fetch('/slow').then(async answer => x.textContent = await answer.text())"),
    "/stream": "<p id=x>right</p><script>new EventSource('/endless')</script>",
    "/button": f"<button onclick=\"setTimeout(() => location = '{SITE}/right', 900)\">go</button>",
    "/steps": "<p id=x>wrong</p><p id=y></p>",
}


@pytest.fixture(scope="module")
def site():
    async def answer(request):
        if request.path == "/slow":
            return web.Response(text="right")
        if request.path == "/endless":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            while True:
                await response.write(b"data: x\n\n")
                await asyncio.sleep(0.05)
        return page(PAGES[request.path])

    with serving(answer) as port:
        yield port


def target(url, **fields):
    locator = "document.querySelector('#x').outerText"
    return {"url": url, "locator": locator, "required_contents": {"exact_match": "right"}, **fields}


def score(player, *targets):
    evaluation = {"eval_types": ["program_html"], "program_html": targets}
    return player.run(evaluate(evaluation, FinalState("", player.session, "", {}, player.snapshot.taken_at), None))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/right", 1.0),
        ("/empty", 1.0),
        ("/other", 1.0),
        ("/absent", 1.0),
        ("/answer", 1.0),
        ("/transient", 0.0),
        ("/too_late", 0.0),
    ],
)
def test_page_is_evaluated_as_it_is_after_three_seconds_without_waiting_for_them(site, path, expected):
    with playing(site) as player:
        started = time.monotonic()
        assert score(player, target(SITE + path)) == expected
        assert time.monotonic() - started < LATE_CONTENT_S


def test_page_with_an_endless_request_is_evaluated_after_three_seconds(site):
    with playing(site) as player:
        started = time.monotonic()
        assert score(player, target(SITE + "/stream")) == 1.0
        assert time.monotonic() - started < LATE_CONTENT_S + 2


@pytest.mark.parametrize(("path", "expected"), [("/other", 1.0), ("/transient", 0.0)])
def test_last_page_is_evaluated_three_seconds_after_the_last_action(site, path, expected):
    with playing(site, path) as player:
        assert score(player, target("last")) == expected


def test_url_is_evaluated_three_seconds_after_the_last_action(site):
    with playing(site, "/button") as player:
        player.do("click <'go'>")
        evaluation = {"eval_types": ["url_match"], "reference_url": f"{SITE}/right"}
        final = FinalState("", player.session, "", {}, player.snapshot.taken_at)
        assert player.run(evaluate(evaluation, final, None)) == 1.0


def test_script_that_never_ends_is_an_error_and_not_a_wrong_answer(site):
    with playing(site) as player, pytest.raises(EnvError, match="does not end: new Promise"):
        score(player, target("last", locator="new Promise(() => 0)"))


@pytest.mark.parametrize(
    ("scripts", "expected"), [(["x.gone.click()", "x.textContent = 'right'"], 0.0), (["x.textContent = 'right'"], 1.0)]
)
def test_prep_actions_end_at_the_first_that_fails(site, scripts, expected):
    with playing(site) as player:
        assert score(player, target(SITE + "/steps", prep_actions=scripts)) == expected
