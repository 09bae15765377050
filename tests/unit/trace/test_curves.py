"""Test reading of the metrics log, and learning curves with the panels that have data."""

import json
import struct

import pytest

from verl_agent.errors import ConfigError
from verl_agent.trace.curves import plot_curves
from verl_agent.trace.metrics_log import ValidationScore, parse_step, read_metrics, validation_scores
from verl_agent.trace.panels import RETURN, Curve, mean_over_steps, smoothed, usual_window
from verl_agent.trace.run_panels import logged_steps, run_panels


def write(path, *lines: tuple[int, dict[str, float | None]]):
    path.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in lines))
    return path


def full_step(step: int) -> dict[str, float | None]:
    return {
        "episode/reward_mean": step / 10,
        "episode/success_rate": step / 100,
        "episode/turns_mean": 4.0,
        "episode/horizon": 5 if step < 20 else 10,
        "stop/terminated": 0.75,
        "stop/turn_limit": 0.25,
        "actor/entropy": 1 / step,
        "training/rollout_probs_diff_mean": 0.004,
        "timing_s/gen": 10.0,
        "timing_s/update_actor": 5.0,
        "timing_s/step": 16.0,
        "val-core/guess/success/mean@1": step / 100,
    }


def size_of(png) -> tuple[int, int]:
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG")
    return struct.unpack(">II", content[16:24])


@pytest.mark.parametrize("steps", [1, 12, 60])
def test_curves_are_1200_pixels_wide_for_short_and_long_runs(tmp_path, steps):
    log = write(tmp_path / "m.jsonl", *((step, full_step(step)) for step in range(1, steps + 1)))
    png = plot_curves(log, tmp_path / "plots" / "curves.png", "guess_number")
    assert size_of(png)[0] == 1200


def test_a_panel_without_data_is_left_out(tmp_path):
    few = plot_curves(write(tmp_path / "a.jsonl", (1, {"actor/entropy": 1.0})), tmp_path / "a.png")
    all_panels = plot_curves(write(tmp_path / "b.jsonl", (1, full_step(1))), tmp_path / "b.png")
    assert size_of(few)[1] < size_of(all_panels)[1] / 2


def test_a_run_with_only_validation_has_one_panel():
    log = {0: {"val-core/guess/reward/mean@4": 0.5}}
    assert [panel.kind for panel in run_panels(logged_steps(log), log)] == [RETURN]


def test_a_log_without_known_metrics_raises_config_error(tmp_path):
    with pytest.raises(ConfigError, match="Nothing to plot"):
        plot_curves(write(tmp_path / "m.jsonl", (1, {"perf/throughput": 3.0})), tmp_path / "m.png")


def test_a_restart_replaces_the_steps_that_it_logs_again(tmp_path):
    first = write(
        tmp_path / "1.jsonl", (1, {"actor/entropy": 0.1}), (2, {"actor/entropy": 0.2}), (3, {"actor/entropy": 0.3})
    )
    second = write(tmp_path / "2.jsonl", (2, {"val-core/guess/reward/mean@1": 0.5}), (3, {"actor/entropy": 0.9}))
    assert read_metrics([first, second]) == {
        1: {"actor/entropy": 0.1},
        2: {"actor/entropy": 0.2, "val-core/guess/reward/mean@1": 0.5},
        3: {"actor/entropy": 0.9},
    }


def test_an_unfinished_line_is_skipped(tmp_path, caplog):
    path = write(tmp_path / "m.jsonl", (1, {"actor/entropy": 0.1}), (2, {"actor/entropy": 0.2}))
    path.write_text(path.read_text()[:-9])
    assert list(read_metrics(path)) == [1]
    assert "m.jsonl:2" in caplog.text


def test_values_that_are_not_finite_numbers_are_left_out():
    logged = parse_step('{"step": 3, "data": {"a": null, "b": NaN, "c": "text", "d": 2}}')
    assert logged is not None
    assert (logged.step, logged.values) == (3, {"d": 2.0})


@pytest.mark.parametrize("line", ["", "{", "[]", '{"step": 1}', '{"data": {}}', '{"step": "1", "data": {}}', b"\xff"])
def test_a_line_that_logs_no_step_is_not_parsed(line):
    assert parse_step(line) is None


def test_validation_scores_are_read_from_the_metric_names_of_verl():
    values = {
        "val-core/textcraft/success/mean@1": 0.1,
        "val-core/textcraft/success/mean@8": 0.8,
        "val-core/textcraft/success/best@8/mean": 0.9,
        "val-aux/textcraft/reward/mean@8": 80.0,
        "val-aux/num_turns/mean": 4.0,
    }
    assert validation_scores(values) == [
        ValidationScore("textcraft", "reward", 80.0),
        ValidationScore("textcraft", "success", 0.8),
    ]


def test_a_running_mean_uses_earlier_steps_only():
    assert mean_over_steps({1: 1.0, 2: 3.0, 3: 5.0, 9: 7.0}, window=2) == {1: 1.0, 2: 2.0, 3: 4.0, 9: 7.0}


def test_a_long_run_has_a_running_mean_before_its_own_values_and_a_limit_has_none():
    assert (usual_window(range(39)), usual_window(range(60))) == (1, 3)
    curve = Curve("a", {step: float(step) for step in range(60)}, band={0: (0.0, 1.0)})
    own, mean = smoothed(curve, 3)
    assert own.faint and own.values == curve.values and own.band == curve.band
    assert mean.values[59] == 58.0 and not mean.band
    assert smoothed(Curve("limit", curve.values, dashed=True), 3)[0].values == curve.values
    assert [one.faint for one in smoothed(Curve("a", curve.values, stack="b"), 3)] == [False]


def test_a_title_with_dollar_signs_is_no_formula(tmp_path):
    metrics = write(tmp_path / "metrics.jsonl", *((step, full_step(step)) for step in (1, 2)))
    assert plot_curves(metrics, tmp_path / "curves.png", title=r"a $\frac$ b").is_file()


def test_names_and_titles_of_others_are_drawn_as_visible_text(tmp_path):
    name = "val-core/\u202eevil\ud800/reward/mean@1"
    log = write(tmp_path / "a.jsonl", (1, {name: 0.5}), (2, {name: 0.5}))
    assert "val-core/⟨RLO⟩evil\ufffd/reward/mean@1" in read_metrics(log)[1]
    assert plot_curves(log, tmp_path / "a.png", "folder \udcff").is_file()
