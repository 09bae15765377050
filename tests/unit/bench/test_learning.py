"""Tests of the learning benchmark: equal numbers of environment steps, cost of a success, collapse."""

import json

import pytest

from tests.bench.learning.__main__ import points
from tests.bench.learning.analysis import Point, at_budget, collapsed, compare, over_seeds, paired, reached
from tests.support.episodes import talk
from verl_agent.trace.record_files import EpisodeWriter


def run(*success: float, turns: int = 10) -> list[Point]:
    return [Point(step, step * turns, step * 2.0, value) for step, value in enumerate(success)]


def test_arms_are_compared_at_the_steps_that_all_have_reached():
    """The cheap arm reaches 0.9 only after more steps than the other arm has."""
    arms = {"cheap": [run(0.1, 0.3, 0.5, 0.9, turns=10)], "expensive": [run(0.1, 0.4, turns=20)]}
    table = compare(arms, target=0.5)
    assert {figures["env_steps"] for figures in table.values()} == {20}
    assert table["cheap"]["gain"].startswith("0.400")
    assert table["cheap"]["success"].startswith("0.500") and table["expensive"]["success"].startswith("0.400")
    assert (table["cheap"]["reached_target"], table["expensive"]["reached_target"]) == ("1 of 1", "0 of 1")
    assert table["cheap"]["env_steps_to_target"].startswith("20.0") and table["expensive"]["seconds_to_target"] == "-"


def test_a_run_that_loses_much_success_has_collapsed():
    assert collapsed(run(0.1, 0.8, 0.5)) and not collapsed(run(0.1, 0.8, 0.7))


def test_success_between_two_validations_is_interpolated():
    """The last validation before the budget would compare arms at different numbers of steps."""
    assert at_budget(run(0.1, 0.2, 0.3), 15) == pytest.approx(0.25)
    assert at_budget(run(0.1, 0.2), 40) == 0.2
    assert reached(run(0.1, 0.2), 0.3) is None


def test_the_interval_over_three_seeds_is_a_t_interval():
    """The half width is 4.303 standard errors."""
    half = 4.303 * 0.1 / 3**0.5
    assert over_seeds([0.5, 0.6, 0.7]) == f"0.600 [{0.6 - half:.3f}, {0.6 + half:.3f}]"
    assert over_seeds([0.5]) == "0.500"


def test_steps_that_a_resumed_run_repeats_count_once(tmp_path):
    for start, steps in (("a", (1, 2)), ("b", (2, 3))):
        with EpisodeWriter(tmp_path / f"episodes/{start}.jsonl") as episodes:
            for step in steps:
                episodes.write(talk("x y", purpose="train") | {"step": step})
    (tmp_path / "metrics").mkdir()
    lines = [{"step": step, "data": {"val-core/talk/success/mean@1": 0.5}} for step in range(4)]
    (tmp_path / "metrics/a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(point.step, point.env_steps) for point in points(tmp_path)] == [(0, 0), (1, 2), (2, 4), (3, 6)]


def test_success_after_the_last_step_is_paired_whatever_number_of_turns_the_arms_took():
    """The second arm needs half the turns, so at the same number of turns only the first has reached its end."""
    arms = {
        "synchronous": [[Point(0, 0, 0.0, 0.5), Point(1, 200, 0.0, 0.7)] for _ in range(2)],
        "partial": [[Point(0, 0, 0.0, 0.5), Point(1, 100, 0.0, 0.8)] for _ in range(2)],
    }
    table = paired(arms)
    assert str(table["partial"]["paired_last_success"]).startswith("0.100")
    assert str(table["partial"]["paired_success"]).startswith("0.200")
