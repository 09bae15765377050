"""Numbers and words of pages against their definitions: running means, phases, axes, groups, and what is being read."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.episodes import STARTED, played
from tests.support.waiting import wait_until
from verl_agent.results.findings_steps import StepSummary
from verl_agent.results.results import summarize
from verl_agent.runs.identity import LOCK_FILE, write_plan
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.panels import SECONDS, SUCCESS, TURNS
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose
from verl_agent.viewer.charts import chart
from verl_agent.viewer.export.write import export_episodes
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.listings import learning_signal, list_groups
from verl_agent.viewer.overview import read_overview, status_of
from verl_agent.viewer.queries import mean_divergence, mean_returns, success_rates
from verl_agent.viewer.run_data import RunData, panels
from verl_agent.viewer.sources import open_source, open_sources
from verl_agent.viewer.state import ViewerState


def at(step: int, purpose: str = "train", success: float = 0.0, max_turns: int = 4) -> StepSummary:
    return StepSummary(
        step=step,
        purpose=purpose,
        episodes=8,
        env_errors=0,
        reward=success,
        success=success,
        turns=3.0,
        max_turns=max_turns,
        tokens=10,
        seconds=1.0,
        started_at=STARTED.isoformat(),
        stops={},
        behaviors=dict.fromkeys((one.name for one in BEHAVIORS), 0.0),
    )


def line(run: RunData, title: str, name: str, smooth: int) -> dict[int, float]:
    (panel,) = [panel for panel in panels(run) if panel.kind.title == title]
    found = [one for one in chart([(run, panel)], smooth=smooth)["series"] if one["name"] == name][-1]
    return {step: value for _, value, step in found["data"]}


def test_a_running_mean_is_over_steps_and_leaves_limits_and_spaced_validations_alone() -> None:
    train = [at(step, success=step / 20, max_turns=4 if step < 6 else 8) for step in range(1, 11)]
    run = RunData("run", [*train, at(5, "validation", 0.1), at(10, "validation", 0.35)], {})
    assert line(run, SUCCESS.title, "validation", 3) == {5: 0.1, 10: 0.35}
    assert line(run, SUCCESS.title, "validation", 10)[10] == pytest.approx(0.225)
    assert line(run, TURNS.title, "turn limit", 10) == {step: 4.0 if step < 6 else 8.0 for step in range(1, 11)}
    assert line(run, SUCCESS.title, "training", 2)[10] == pytest.approx((9 / 20 + 10 / 20) / 2)


def test_the_phases_of_a_step_add_up_to_its_time() -> None:
    """Figures of a run with a reference model and a reward phase, which have no curve of their own."""
    logged = {"step": 26.8, "gen": 12.0, "old_log_prob": 4.0, "update_actor": 6.3, "ref": 3.5, "reward": 1.0}
    run = RunData("run", [at(1)], {1: {f"timing_s/{name}": value for name, value in logged.items()}})
    (panel,) = [panel for panel in panels(run) if panel.kind is SECONDS]
    assert sum(curve.values[1] for curve in panel.curves) == pytest.approx(26.8)
    tested = RunData("run", [at(1)], {1: {**run.logged[1], "timing_s/testing": 9.0}})
    (panel,) = [panel for panel in panels(tested) if panel.kind is SECONDS]
    assert sum(curve.values[1] for curve in panel.curves) == pytest.approx(26.8 + 9.0), "tests follow the step"


def episode(group: str, sample: int, action: str, purpose: Purpose = "train", step: int = 1) -> EpisodeRecord:
    meta = EpisodeMeta(purpose, "train", step, group, sample, STARTED, seconds=1.0)
    return played(("north", "hall"), (action, "yard"), meta=meta)


def write(file: Path, *records: EpisodeRecord) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file


def test_groups_of_equal_actions_count_in_the_first_different_turn(tmp_path: Path) -> None:
    """Else a policy that takes one path in nine of ten groups would seem to explore as one that never does."""
    parting = [episode("a", 0, "east"), episode("a", 1, "west")]
    equal = [episode("b", 0, "east"), episode("b", 1, "east")]
    with RecordIndex(open_source(write(tmp_path / "episodes.jsonl", *parting, *equal))) as index:
        index.update()
        assert mean_divergence(index) == {1: (2 + 3) / 2}


def test_groups_of_a_validation_neither_have_nor_lack_a_learning_signal(tmp_path: Path) -> None:
    records = [episode(purpose, sample, "east", purpose) for purpose in ("train", "validation") for sample in (0, 1)]
    file = write(tmp_path / "run" / "episodes.jsonl", *records)
    with RecordIndex(open_source(file)) as index:
        index.update()
        found = {group["purpose"]: learning_signal(group) for group in list_groups(index, Filter(), 10)}
    assert found == {"train": "no", "validation": ""}
    export_episodes([file.parent], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("no: all returns are equal") == 1 and text.count("all returns are equal") == 2


def test_a_file_without_records_beside_runs_is_named_and_skipped(tmp_path: Path, caplog) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "episodes.jsonl", episode("1", 0, "east", "evaluation"))
    for name, text in {"notes.jsonl": '{"note": "none"}\n', "empty.jsonl": "", "odd.jsonl": "\0\xff\n[[[\n"}.items():
        (tmp_path / name).write_text(text)
    assert [source.name for source in open_sources(tmp_path)] == ["a", "b"]
    assert all(f"{tmp_path / name}.jsonl is skipped" in caplog.text for name in ("notes", "empty", "odd"))
    write(tmp_path / "more.jsonl", episode("1", 0, "east"))
    assert [source.path for source in open_sources(tmp_path)] == [tmp_path], "records would be lost"


def test_a_run_whose_records_are_not_read_yet_is_neither_ended_nor_stopped(tmp_path: Path) -> None:
    write(tmp_path / "run" / "episodes" / "a.jsonl", episode("1", 0, "east", step=3))
    (tmp_path / "run" / "metrics").mkdir()
    (tmp_path / "run" / LOCK_FILE).touch()
    write_plan(tmp_path / "run", 3)
    state = ViewerState([tmp_path / "run"])
    (opened,) = state.opened.values()
    before = opened.changes
    state.start()
    try:
        shown = {status_of(opened)}
        wait_until(lambda: shown.add(status_of(opened)) or not opened.reading)
        assert shown <= {"reading", "ended"} and status_of(opened) == "ended"
        assert opened.changes > before, "pages do not learn that it has been read"
    finally:
        state.close()
    opened.reading = True
    assert status_of(opened) == "reading"


def test_a_run_started_and_took_as_long_as_its_starts(tmp_path: Path) -> None:
    """The run waits 10 s for its engine, plays for 20 s, and plays for 40 s after two hours; one episode failed."""
    (tmp_path / "metrics").mkdir()
    for start in ("20260101T100000", "20260101T120000"):
        (tmp_path / f"metrics/{start}.jsonl").write_text("")
    begun = [("10:00:10", 5.0, "terminated"), ("10:00:20", 10.0, "env_error"), ("12:00:30", 10.0, "terminated")]
    lines = [
        played(("a", "b"), task=time) | {"started_at": f"2026-01-01T{time}+00:00", "seconds": seconds, "stop": stop}
        for time, seconds, stop in begun
    ]
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes/a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (opened,) = ViewerState([tmp_path]).opened.values()
    opened.index.update()
    facts = read_overview(opened).facts
    assert facts["took"] == "0:01:10"
    started = datetime.fromisoformat("2026-01-01T10:00:00+00:00").astimezone()
    assert facts["started"] == f"{started:%Y-%m-%d %H:%M}"


@pytest.mark.parametrize("unit", [1.0, 10.0])
def test_one_rate_has_one_interval(tmp_path: Path, unit: float) -> None:
    """A return that is 0 or that of a solved task is a rate, in the report as on pages."""
    rewards = [unit, 0.0, unit, 0.0, 0.0, 0.0]
    records = [
        played(("a", "b"), task=str(task), reward=reward) | {"success_reward": unit, "success": reward > 0}
        for task, reward in enumerate(rewards)
    ]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    report = summarize(records)[-1]
    with RecordIndex(open_source(tmp_path / "a.jsonl")) as index:
        index.update()
        (rate,), (earned,) = success_rates(index).values(), mean_returns(index).values()
    assert report.success is not None and str(report.success) == str(rate)
    assert str(report.mean_return) == str(earned)
    assert (earned.low, earned.high) == (unit * rate.low, unit * rate.high)
