"""Test the parts of the viewer that need no browser: text, curves, access control, sources."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from verl_agent.errors import ConfigError
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.viewer.access import COOKIE, GuardRequests
from verl_agent.viewer.charts import Curve, Panel, RunData, chart, panels
from verl_agent.viewer.queries import StepSummary, TaskStep
from verl_agent.viewer.state import ViewerState
from verl_agent.viewer.text import make_visible, shorten, split_reply


def test_control_and_direction_characters_are_visible() -> None:
    assert make_visible("a\0b\u202ec\nd\te") == "a\u2400b⟨RLO⟩c\nd\te"
    assert make_visible("\udc80") == "\ufffd"


def test_long_text_is_cut_and_the_rest_is_counted() -> None:
    assert shorten("abcdef", 4) == ("abcd", 2)
    assert shorten("abc", 4) == ("abc", 0)


def test_a_reply_is_split_at_its_last_mention_of_the_action() -> None:
    assert split_reply("go? Yes: go!", "go") == ("go? Yes: ", "go", "!")
    assert split_reply("no action", None) == ("no action", "", "")
    assert split_reply("call(x=1)", "x: 1") == ("call(x=1)", "", "")


def step(number: int, purpose: str = "train", **values: object) -> StepSummary:
    defaults = {"episodes": 8, "env_errors": 0, "reward": 0.5, "success": 0.25, "turns": 4.0, "max_turns": 6}
    defaults |= {"tokens": 100, "seconds": 1.0, "started_at": f"2026-01-01T0{number}:00:00+00:00", "stops": {}}
    behaviors = dict.fromkeys((behavior.name for behavior in BEHAVIORS), 0.0)
    return StepSummary(step=number, purpose=purpose, behaviors=behaviors, **(defaults | values))  # type: ignore[arg-type]


def test_the_x_axis_sums_training_episodes_only() -> None:
    run = RunData("run", [step(0, "validation"), step(1), step(2, turns=2.0), step(2, "validation")], {})
    assert run.positions("episodes") == {0: 0, 1: 8, 2: 16}
    assert run.positions("turns") == {0: 0, 1: 32, 2: 48}
    assert run.positions("hours") == {0: 0, 1: 1, 2: 2}
    assert run.positions("step") == {0: 0, 1: 1, 2: 2}


def test_points_of_a_chart_know_their_step() -> None:
    run = RunData("run", [step(1), step(2, success=0.75)], {})
    (success,) = [panel for panel in panels(run) if panel.title == "Success"]
    options = chart("Success", [(run, success)], "episodes", smooth=2)
    assert options["series"][0]["data"] == [[8, 0.25, 1], [16, 0.5, 2]]


def test_charts_of_several_runs_name_the_run_of_each_curve() -> None:
    run, panel = RunData("one", [step(1)], {}), Panel("Return", [Curve("train", {1: 0.5})])
    names = [line["name"] for line in chart("Return", [(run, panel), (RunData("two", [step(1)], {}), panel)])["series"]]
    assert names == ["one: train", "two: train"]


def test_a_task_tells_when_it_was_solved_and_forgotten() -> None:
    from verl_agent.viewer.pages.task import describe

    history = [TaskStep(number, "train", 4, success, 0.0, []) for number, success in ((1, 0.0), (2, 0.5), (3, 0.0))]
    assert (
        describe(history)
        == "First solved at step 2, solved at 1 of 3 steps. Not solved at 1 later steps, last at step 3."
    )
    assert describe(history[:1]) == "Not solved at any of 1 steps."


def answer(guard: GuardRequests, url: str = "http://127.0.0.1:8080/", **headers: str) -> httpx.Response:
    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard)) as client:
            return await client.get(url, headers=headers)

    return asyncio.run(get())


def guarded(host: str = "127.0.0.1", token: str | None = None) -> GuardRequests:
    async def home(request: object) -> PlainTextResponse:
        return PlainTextResponse("home")

    return GuardRequests(Starlette(routes=[Route("/", home)]), host, token)


def test_a_request_for_another_host_or_from_another_origin_is_refused() -> None:
    assert answer(guarded()).status_code == 200
    assert answer(guarded(), "http://localhost:8080/").status_code == 200
    assert answer(guarded(), host="evil.example").status_code == 403
    assert answer(guarded(), origin="http://evil.example").status_code == 403
    assert answer(guarded(), origin="http://127.0.0.1:8080").status_code == 200


def test_the_token_of_the_url_becomes_a_cookie_and_is_required() -> None:
    guard = guarded("192.0.2.1", "secret")
    url = "http://192.0.2.1:8080/"
    assert answer(guard, url).status_code == 403
    assert answer(guard, url + "?token=wrong").status_code == 403
    first = answer(guard, url + "?token=secret")
    assert first.status_code == 303
    assert "token" not in first.headers["location"]
    assert first.cookies[COOKIE] == "secret"
    assert answer(guard, url, cookie=f"{COOKIE}=secret").status_code == 200


def test_runs_of_the_same_name_get_keys_of_their_own(tmp_path: Path) -> None:
    for parent in "ab":
        (tmp_path / parent / "run" / "metrics").mkdir(parents=True)
    state = ViewerState([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert list(state.opened) == ["run", "run~2"]
    state.close()
    with pytest.raises(ConfigError, match="twice"):
        ViewerState([tmp_path / "a" / "run", tmp_path / "a" / "run"])


def test_a_run_that_is_followed_gets_the_episodes_that_are_added(tmp_path: Path) -> None:
    from tests.support.episodes import played
    from verl_agent.viewer.filters import Filter
    from verl_agent.viewer.queries import count_episodes

    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps(played(("north", "hall"))) + "\n")
    state = ViewerState([file])
    opened = state.get("episodes.jsonl")
    state._update(opened)
    before = opened.changes
    with file.open("a") as out:
        out.write(json.dumps(played(("east", "yard"), task="2")) + "\n")
    state._update(opened)
    assert count_episodes(opened.index, Filter()) == 2
    assert opened.changes > before
    assert opened.progress[0] == opened.progress[1] == file.stat().st_size
    state.close()
