"""Test the parts of the viewer that need no browser: text, curves, access control, sources."""

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from nicegui import Client
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.support.episodes import played
from tests.support.viewing import step
from verl_agent.errors import ConfigError
from verl_agent.oversight.control import RunControl
from verl_agent.oversight.socket import controlled
from verl_agent.results.folder import read_report
from verl_agent.results.statistics import Estimate
from verl_agent.runs.hang_watch import mark_phase
from verl_agent.runs.identity import LOCK_FILE, lock, write_plan
from verl_agent.trace.labels import Label, LabelFile
from verl_agent.trace.panels import RETURN, SECONDS, STOPS, SUCCESS, Curve, Panel
from verl_agent.trace.run_panels import MOST_CURVES
from verl_agent.types import StopReason
from verl_agent.viewer.access import COOKIE, GuardRequests
from verl_agent.viewer.charts import chart
from verl_agent.viewer.episode_html import block, split_reply
from verl_agent.viewer.filters import SavedFilters
from verl_agent.viewer.layout import MAX_UNOPENED
from verl_agent.viewer.live import WINDOW_S, read_now
from verl_agent.viewer.overview import read_overview, status_of
from verl_agent.viewer.queries import TaskStep, success_rates
from verl_agent.viewer.run_data import RunData, panels
from verl_agent.viewer.server import LOCAL, listen, serving_pages
from verl_agent.viewer.state import ViewerState, short_keys
from verl_agent.viewer.text import MAX_NAME, MAX_SHOWN, make_visible, short_name


def test_control_and_direction_characters_are_visible() -> None:
    assert make_visible("a\0b\u202ec\nd\te") == "a\u2400b⟨RLO⟩c\nd\te"
    assert make_visible("\udc80") == "\ufffd"


def test_a_name_in_a_line_is_cut_visible_and_keeps_its_direction() -> None:
    """A name in Hebrew would otherwise change the order of the numbers beside it."""
    assert short_name("task 1") == "task 1"
    assert short_name("x" * 300) == "x" * MAX_NAME + "…"
    assert short_name("a\u202eb") == "a⟨RLO⟩b"
    assert short_name("\u05d0 1") == "\u2068\u05d0 1\u2069"


def test_long_text_is_cut_and_the_rest_is_counted() -> None:
    assert block("x" * MAX_SHOWN) == f"<div class='mono'>{'x' * MAX_SHOWN}</div>"
    whole = block("x" * MAX_SHOWN + "<b>", rest=lambda place, rest: f"({len(rest)} more)")
    assert whole == f"<div class='mono'>{'x' * MAX_SHOWN}</div>(3 more)"


def test_a_reply_is_split_at_its_last_mention_of_the_action() -> None:
    assert split_reply("go? Yes: go!", "go") == ("go? Yes: ", "go", "!")
    assert split_reply("no action", None) == ("no action", "", "")
    assert split_reply("call(x=1)", "x: 1") == ("call(x=1)", "", "")


def test_the_x_axis_sums_training_episodes_only() -> None:
    run = RunData("run", [step(0, "validation"), step(1), step(2, turns=2.0), step(2, "validation")], {})
    assert run.positions("episodes") == {0: 0, 1: 8, 2: 16}
    assert run.positions("turns") == {0: 0, 1: 32, 2: 48}
    assert run.positions("hours") == {0: 0, 1: 1, 2: 2}
    assert run.positions("step") == {0: 0, 1: 1, 2: 2}


def test_points_of_a_chart_know_their_step() -> None:
    run = RunData("run", [step(1), step(2, success=0.75)], {})
    (success,) = [panel for panel in panels(run) if panel.kind is SUCCESS]
    options = chart([(run, success)], "episodes", smooth=2)
    assert [line["data"] for line in options["series"]] == [
        [[8, 0.25, 1], [16, 0.75, 2]],
        [[8, 0.25, 1], [16, 0.5, 2]],
    ]


def test_differences_of_probabilities_and_of_log_probs_are_two_charts() -> None:
    """Two runs may have logged one of them each; that of the present weights goes before that of all tokens."""
    present, probability, log_prob = "staleness/0/probs_diff", "training/rollout_probs_diff_mean", "actor/ppo_kl"

    def shown(**logged: float) -> dict[str, float]:
        found = panels(RunData("run", [step(1)], {1: logged}))
        return {panel.kind.title: panel.curves[0].values[1] for panel in found if panel.kind.title.startswith("Engine")}

    of_probabilities = {"Engine against trainer (mean |Δ probability|)": 0.1}
    for logged in ({present: 0.1}, {probability: 0.1}, {present: 0.1, probability: 0.3}):
        assert shown(**logged) == shown(**logged, **{log_prob: 0.2}) == of_probabilities
    assert shown(**{log_prob: 0.2}) == {"Engine against trainer (mean Δ log-prob)": 0.2}


def test_charts_of_several_runs_name_the_run_of_each_curve() -> None:
    run, panel = RunData("one", [step(1)], {}), Panel(RETURN, [Curve("training", {1: 0.5})])
    names = [line["name"] for line in chart([(run, panel), (RunData("two", [step(1)], {}), panel)])["series"]]
    assert names == ["one: training", "two: training"]


def test_a_task_tells_when_it_was_solved_and_forgotten() -> None:
    from verl_agent.viewer.pages.task import describe_history

    history = [TaskStep(number, "train", 4, success, 0.0, []) for number, success in ((1, 0.0), (2, 0.5), (3, 0.0))]
    assert (
        describe_history(history)
        == "First solved at step 2, solved at 1 of 3 steps. Not solved at 1 later step, last at step 3."
    )
    assert describe_history(history[:1]) == "Not solved at any of 1 step."


def answer(guard: GuardRequests, url: str = "http://127.0.0.1:8080/", **headers: str) -> httpx.Response:
    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard)) as client:
            return await client.get(url, headers=headers)

    return asyncio.run(get())


def guarded(host: str = "127.0.0.1", token: str = "secret") -> GuardRequests:
    async def home(request: object) -> PlainTextResponse:
        return PlainTextResponse("home")

    return GuardRequests(Starlette(routes=[Route("/", home)]), host, token)


def test_a_request_for_another_host_or_from_another_origin_is_refused() -> None:
    known = {"cookie": f"{COOKIE}_8080=secret"}
    assert answer(guarded(), **known).status_code == 200
    assert answer(guarded(), "http://localhost:8080/", **known).status_code == 200
    assert answer(guarded(), host="evil.example", **known).status_code == 403
    assert answer(guarded(), origin="http://evil.example", **known).status_code == 403
    assert answer(guarded(), origin="http://127.0.0.1:8080", **known).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_the_token_of_the_url_becomes_a_cookie_and_is_required(host: str) -> None:
    guard = guarded(host)
    url = f"http://{host}:8080/"
    assert answer(guard, url).status_code == 403
    assert answer(guard, url + "?token=wrong").status_code == 403
    first = answer(guard, url + "?token=secret")
    assert first.status_code == 303
    assert "token" not in first.headers["location"]
    assert first.cookies[f"{COOKIE}_8080"] == "secret"
    assert {"HttpOnly", "SameSite=strict"} <= set(first.headers["set-cookie"].split("; "))
    assert answer(guard, url, cookie=f"{COOKIE}_8080=secret").status_code == 200


def test_runs_of_the_same_name_get_keys_of_their_own(tmp_path: Path) -> None:
    for parent in "ab":
        (tmp_path / parent / "run" / "metrics").mkdir(parents=True)
    state = ViewerState([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert list(state.opened) == ["a:run", "b:run"]
    state.close()
    with pytest.raises(ConfigError, match="twice"):
        ViewerState([tmp_path / "a" / "run", tmp_path / "a" / "run"])


def test_keys_have_as_many_folders_as_distinguish_them() -> None:
    paths = ["/s/oracle/babyai", "/s/random/babyai", "/s/oracle/textcraft", "/t/random/babyai", "/babyai", "/s/a:b/c"]
    keys = short_keys(list(map(Path, paths)))
    assert keys == ["oracle:babyai", "s:random:babyai", "textcraft", "t:random:babyai", "babyai", "c"]
    assert short_keys([Path("/a:b/c"), Path("/a/b:c"), Path("/d/b:c"), Path("/e/c")]) == [
        "a:b:c",
        "a:b:c~2",
        "d:b:c",
        "e:c",
    ]


def test_the_overview_of_an_evaluation_has_the_interval_of_its_report(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").touch()
    state = ViewerState([tmp_path])
    (opened,) = state.opened.values()
    assert read_overview(opened).result == ""
    report = {"model": "oracle", "config": {"env": {"name": "babyai"}, "evaluation": {}}}
    success = {"mean": 0.5, "low": 0.25, "high": 0.75}
    (tmp_path / "evaluation.json").write_text(json.dumps({**report, "results": [{"success": success}]}))
    overview = read_overview(opened)
    assert overview.result == "success 0.500 [0.250, 0.750]"
    assert overview.facts | {"model": "oracle", "environment": "babyai"} == overview.facts
    (tmp_path / "evaluation.json").write_text(json.dumps({**report, "results": [{"success": None}]}))
    assert read_overview(opened).result == "no valid episode"
    state.close()


def test_an_evaluation_took_until_its_last_episode(tmp_path: Path) -> None:
    records = [
        played(("north", "hall"), task=str(hour)) | {"started_at": f"2026-01-01T0{hour}:00:00+00:00"} for hour in (1, 3)
    ]
    (tmp_path / "episodes.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    state = ViewerState([tmp_path])
    (opened,) = state.opened.values()
    state._update(opened)
    assert read_overview(opened).facts["took"].startswith("2:00:0")
    state.close()


def test_the_overview_tells_whether_another_process_holds_the_run(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    state = ViewerState([tmp_path])
    (opened,) = state.opened.values()
    assert status_of(opened) == ""
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, 2); print(flush=True); input()"
    command = [sys.executable, "-c", script, str(tmp_path / LOCK_FILE)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert status_of(opened) == "running"
    holder.communicate(b"\n")
    assert status_of(opened) == "stopped at step 0"
    state.close()


def test_a_run_that_is_followed_gets_the_episodes_that_are_added(tmp_path: Path) -> None:
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


def test_replies_of_an_api_are_no_episodes(tmp_path: Path) -> None:
    from tests.support.episodes import talk
    from verl_agent.trace.record_files import read_records

    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "episodes.jsonl").write_text(json.dumps(talk()) + "\n")
        (folder / "replies.jsonl").write_text('{"key": "1", "reserved_usd": 0.1}\n')
    state = ViewerState([tmp_path])
    for opened in state.opened.values():
        state._update(opened)
        assert (opened.invalid_lines, opened.index.count_bad_lines()) == ("", 0)
    state.close()
    assert len(list(read_records(tmp_path))) == 2


def test_a_port_that_another_viewer_has_is_refused() -> None:
    first = listen(LOCAL, 0)
    port = first.socket.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"cannot listen at 127.0.0.1:{port}.*Choose another --port"):
        listen(LOCAL, port)
    first.socket.close()


def test_invalid_lines_and_a_deleted_run_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "run" / "episodes.jsonl"
    file.parent.mkdir()
    file.write_text('{"version": 99}\nno json\n')
    state = ViewerState([file.parent])
    opened = state.get("run")
    state._update(opened)
    assert opened.invalid_lines.startswith("2 lines left out")
    assert "version 99" in opened.invalid_lines
    shutil.rmtree(file.parent)
    state._update(opened)
    assert "was deleted" in opened.problem
    state.close()


def test_results_are_computed_again_only_after_a_change(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text("")
    state = ViewerState([file])
    opened, calls = state.get("episodes.jsonl"), iter(range(9))
    assert [opened.cached("a", lambda: next(calls)) for _ in range(2)] == [0, 0]
    opened.changes += 1
    assert opened.cached("a", lambda: next(calls)) == 1
    state.close()


def test_new_metrics_and_labels_refresh_pages_without_new_episodes(tmp_path: Path) -> None:
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    state = ViewerState([tmp_path / "run"])
    opened = state.get("run")
    state._update(opened)
    seen = opened.changes
    (tmp_path / "run" / "metrics" / "a.jsonl").write_text("{}")
    state._update(opened)
    LabelFile.of(tmp_path / "run").change(tuple("12345678"), Label(("good",)))
    state._update(opened)
    assert opened.changes == seen + 2
    state.close()


def test_filters_are_saved_by_name_and_invalid_ones_left_out(tmp_path: Path) -> None:
    saved = SavedFilters(tmp_path / "config" / "filters.json")
    assert saved.read() == {}
    saved.change("failed", {"success": "no"})
    saved.change("long", {"turns": "9.."})
    saved.change("failed", None)
    assert {name: dict(one.values) for name, one in saved.read().items()} == {"long": {"turns": "9.."}}
    saved.path.write_text('{"old": {"renamed": "1"}}')
    assert saved.read() == {}
    saved.path.write_text("[")
    with pytest.raises(ConfigError, match="Repair or delete"):
        saved.read()
    with pytest.raises(ConfigError, match="needs a name"):
        saved.change(" ", {})


def test_results_of_an_evaluation_leave_out_columns_that_no_row_fills() -> None:
    from verl_agent.viewer.pages.run import result_rows

    row = {"category": "all", "tasks": 2, "episodes": 4, "success": {"mean": 0.5, "low": 0.25, "high": 0.75}}
    row |= {"pass_at": {"1": 0.5, "2": 0.75}, "pass_hat": {"1": 0.5, "2": 0.25}, "turns_mean": 3.0}
    row |= {"mean_return": {"mean": 0.6, "low": 0.5, "high": 0.7}}
    columns, (cells,) = result_rows([row | {"cost_usd": None}])
    assert columns == ["category", "tasks", "episodes", "success", "mean return", "pass@2", "pass^2", "mean turns"]
    assert cells == ["all", "2", "4", "0.500 [0.250, 0.750]", "0.600 [0.500, 0.700]", "0.750", "0.250", "3"]


def test_a_chart_has_at_most_six_curves_and_the_borders_of_the_horizon() -> None:
    stops = dict.fromkeys(StopReason, 0.1)
    steps = [step(number, max_turns=4 + 2 * (number > 2), stops=stops) for number in (1, 2, 3)]
    run = RunData("run", steps, {})
    (panel,) = [panel for panel in panels(run) if panel.kind is STOPS]
    assert len(panel.curves) == MOST_CURVES
    assert sum(curve.values[1] for curve in panel.curves) == pytest.approx(0.1 * len(stops))
    options = chart([(run, panel)])
    assert (options["yAxis"]["min"], options["yAxis"]["max"]) == (0, 1)
    assert options["series"][0]["markLine"]["data"] == [{"xAxis": 3.0}]


def test_areas_of_a_stack_have_a_value_at_each_step() -> None:
    timing = {1: {"timing_s/gen": 2.0}, 2: {"timing_s/gen": 3.0, "timing_s/testing": 9.0}}
    run = RunData("run", [step(1), step(2)], timing)
    (seconds,) = [panel for panel in panels(run) if panel.kind is SECONDS]
    gen, testing = chart([(run, seconds)])["series"]
    assert [point[1] for point in testing["data"]] == [0.0, 9.0] and len(gen["data"]) == 2


def test_success_has_the_interval_of_reports_as_a_band() -> None:
    run = RunData("run", [step(1), step(2)], {}, rates={("train", at): Estimate(0.5, 0.2, 0.9, 8) for at in (1, 2)})
    (success,) = [panel for panel in panels(run) if panel.kind is SUCCESS]
    line, low, height = chart([(run, success)])["series"]
    assert [point[1] for point in line["data"]] == [0.5, 0.5]
    assert low["data"] == [[1, 0.2], [2, 0.2]] and height["data"][0][1] == pytest.approx(0.7)
    *_, mean = chart([(run, success)], smooth=5)["series"]
    assert mean["lineStyle"]["width"] == 2 and "stack" not in mean, "a running mean has no interval"


def test_the_rate_of_a_step_is_that_of_the_report(tmp_path: Path) -> None:
    from tests.support.evaluated_games import evaluated

    folder = evaluated(tmp_path / "evaluation", "expensive", samples=2)
    state = ViewerState([folder])
    (opened,) = state.opened.values()
    state._update(opened)
    (rate,) = success_rates(opened.index).values()
    result = read_report(folder)["results"][-1]["success"]
    assert (rate.mean, rate.low, rate.high) == pytest.approx((result["mean"], result["low"], result["high"]))
    state.close()


def test_a_running_run_tells_its_memory_and_keeps_its_lock(tmp_path: Path) -> None:
    """A lock of a process ends with any descriptor of its file that the process closes, also one of a page."""
    (tmp_path / "metrics").mkdir()
    lock(tmp_path)
    with closing(ViewerState([tmp_path])) as state:
        (opened,) = state.opened.values()
        assert status_of(opened) == "running"
        assert float(read_now(opened, datetime.now(UTC))["memory"].split()[0]) > 0
    script = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    other = subprocess.run([sys.executable, "-c", script, str(tmp_path / LOCK_FILE)], capture_output=True, text=True)
    assert "BlockingIOError" in other.stderr


def test_a_running_run_tells_its_speed_and_its_end(tmp_path: Path) -> None:
    run, now = tmp_path / "run", datetime.now(UTC)
    (run / "metrics").mkdir(parents=True)
    (run / "episodes").mkdir()
    record = played(("north", "hall"), ("east", "yard")) | {"started_at": now.isoformat(), "step": 1}
    record["purpose"] = "train"
    (run / "episodes" / "a.jsonl").write_text(json.dumps(record) + "\n")
    write_plan(run, 3)
    logged = {"timing_s/step": 60.0, "perf/max_memory_allocated_gb": 12.5}
    (run / "metrics" / "a.jsonl").write_text(json.dumps({"step": 1, "data": logged}) + "\n")
    (run / LOCK_FILE).touch()
    state = ViewerState([run])
    opened = state.get("run")
    state._update(opened)
    found = read_now(opened, now)
    assert found["turns a second"] == f"{2 / WINDOW_S:.2f}"
    assert found["GPU memory"] == "12.5 GB" and "memory" not in found
    assert found["step"] == "1 of 3" and found["ends"].endswith("in 0:02:00") and found[""] == "starting"
    mark_phase(run, "updating the policy")
    assert read_now(opened, now)[""] == "updating the policy"
    assert read_now(opened, now + timedelta(hours=1))["turns a second"] == "0.00"
    assert status_of(opened) == "stopped at step 1"
    write_plan(run, 1)
    assert status_of(opened) == "ended"
    state.close()


def test_a_running_evaluation_tells_its_end(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).touch()
    now = datetime.now(UTC) + timedelta(seconds=1)  # after the start of the process
    records = [played(("north", "hall"), task=str(task)) | {"started_at": now.isoformat()} for task in range(2)]
    (tmp_path / "episodes.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    state = ViewerState([tmp_path])
    (opened,) = state.opened.values()
    state._update(opened)

    async def read() -> dict[str, str]:
        with controlled(tmp_path, RunControl(planned=6)):
            return await asyncio.to_thread(read_now, opened, now + timedelta(seconds=60))

    found = asyncio.run(read())
    assert found["episodes"] == "2 of 6" and found["ends"].endswith("in 0:02:00")
    assert "ends" not in read_now(opened, now), "a run that does not answer"
    state.close()


def test_pages_that_no_browser_opens_are_forgotten(tmp_path: Path) -> None:
    """A program that requests pages would otherwise fill the memory: NiceGUI keeps each for a minute."""
    (tmp_path / "episodes.jsonl").touch()
    with (
        serving_pages(ViewerState([tmp_path]), 0) as address,
        httpx.Client(follow_redirects=True, timeout=60) as program,
    ):
        for _ in range(MAX_UNOPENED + 5):
            assert program.get(address.link()).status_code == 200
        assert len(Client.instances) == MAX_UNOPENED
