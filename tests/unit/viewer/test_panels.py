"""Test that a page, an export and `curves.png` draw the same panels: numbers, running means and labels."""

import json
from base64 import b64encode
from pathlib import Path

from tests.support.episodes import STARTED, played
from verl_agent.trace.curves import panel_png
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.panels import RETURN, SUCCESS, TURNS
from verl_agent.trace.record import EpisodeMeta
from verl_agent.trace.run_panels import logged_steps, run_panels
from verl_agent.viewer.charts import chart
from verl_agent.viewer.export.write import export_episodes
from verl_agent.viewer.run_data import panels, read_run
from verl_agent.viewer.state import ViewerState

STEPS = range(1, 61)


def write_run(folder: Path) -> Path:
    """Write a run of one episode a step, with the metrics that the trainer logs of them."""
    (folder / "episodes").mkdir(parents=True)
    (folder / "metrics").mkdir()
    episodes, lines = [], []
    for step in STEPS:
        reward, turns = float(step % 3 == 0), 1 + step % 2
        meta = EpisodeMeta("train", "train", step, f"g{step}", 0, STARTED, seconds=1.0)
        episode = played(*[("north", "hall")] * turns, reward=reward, meta=meta)
        episodes.append(episode)
        values = {"episode/reward_mean": reward, "episode/success_rate": float(episode["success"])}
        values |= {"episode/turns_mean": turns, "episode/horizon": episode["max_turns"], "stop/terminated": 1.0}
        values |= {"timing_s/step": 9.0, "timing_s/gen": 5.0, "actor/entropy": 1 / step}
        lines.append({"step": step, "data": values})
    (folder / "episodes" / "a.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in episodes))
    (folder / "metrics" / "20260101T000000.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    return folder


def test_page_export_and_png_draw_the_same_panels(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    log = read_metrics(sorted((folder / "metrics").iterdir()))
    drawn = run_panels(logged_steps(log), log)  # of curves.png
    export_episodes([folder], tmp_path / "page.html")
    exported = (tmp_path / "page.html").read_text()
    state = ViewerState([folder])
    (opened,) = state.opened.values()
    state._update(opened)
    run = read_run(opened)
    of_page = {panel.kind: panel for panel in panels(run)}
    assert {panel.kind for panel in drawn} <= of_page.keys()
    assert {RETURN, SUCCESS, TURNS} <= {panel.kind for panel in drawn}
    for panel in drawn:
        shown = of_page[panel.kind]
        assert [(one.name, dict(one.values), one.color) for one in panel.curves] == [
            (one.name, dict(one.values), one.color) for one in shown.curves
        ]
        assert b64encode(panel_png(shown, STEPS, 3)).decode() in exported, "60 steps have a running mean of three"
        assert "Thick lines: mean of 3 steps." in exported
    *_, mean = chart([(run, of_page[SUCCESS])], smooth=run.usual_window)["series"]
    assert mean["data"][-1] == [60, (0 + 0 + 1) / 3, 60]
    state.close()


def test_a_run_without_records_shows_what_its_log_has(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "episodes" / "a.jsonl").unlink()
    state = ViewerState([folder])
    (opened,) = state.opened.values()
    state._update(opened)
    assert [panel.kind for panel in panels(read_run(opened))][:2] == [RETURN, SUCCESS]
    state.close()
