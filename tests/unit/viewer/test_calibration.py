"""Test the comparison of a critic's predictions with the returns that followed."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.episodes import STARTED, played
from verl_agent.errors import ConfigError
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, to_episode, to_record
from verl_agent.trace.record_files import read_records
from verl_agent.trace.token_files import TokenRow, TurnValue, read_turn_values, training_file, write_tokens
from verl_agent.viewer.calibration import calibration_chart, describe_calibration
from verl_agent.viewer.calibration_values import Calibration, Prediction, calibrate, predictions, read_values


def drawn(bias: float = 0.0, slope: float = 1.0, noise: float = 0.1, turns: int = 2000) -> list[Prediction]:
    """Return predictions `slope * expected return + bias`, of 40 groups."""
    draws = random.Random(1)
    expected = [draws.random() for _ in range(turns)]
    return [
        Prediction(f"{number % 40}", slope * mean + bias, mean + draws.gauss(0, noise))
        for number, mean in enumerate(expected)
    ]


def of_step(run: Path, step: int) -> Calibration:
    """Return the calibration of the critic of a run at a step."""
    values = read_values(training_file(run, step))
    last = {(one["group"], one["sample"]): one for one in read_records(run) if one["step"] == step}
    return calibrate(predictions(run, values, lambda group, sample: last.get((group, sample))))


def test_a_critic_that_is_right_on_average_has_its_bins_on_the_diagonal():
    found = calibrate(drawn())
    assert (found.turns, found.groups, len(found.bins)) == (2000, 40, 10)
    assert all(one.realized.low - 0.02 < one.value < one.realized.high + 0.02 for one in found.bins)
    assert abs(found.bias) < 0.01
    assert found.explained_variance == pytest.approx(1 - 0.01 / (1 / 12 + 0.01), abs=0.02)


def test_a_critic_that_is_too_high_is_biased_and_one_that_is_too_steep_explains_less():
    assert calibrate(drawn(bias=0.5)).bias == pytest.approx(0.5, abs=0.01)
    steep, right = calibrate(drawn(slope=2)).explained_variance, calibrate(drawn()).explained_variance
    assert steep is not None and right is not None
    assert steep < right
    assert calibrate(drawn(slope=0)).explained_variance == pytest.approx(0, abs=1e-9)


def test_equal_returns_explain_nothing_and_fewer_turns_make_fewer_bins():
    found = calibrate([Prediction("a", 0.5, 1.0), Prediction("a", 0.7, 1.0), Prediction("b", 0.9, 1.0)])
    assert found.explained_variance is None
    assert [one.turns for one in found.bins] == [1, 1, 1]
    with pytest.raises(ConfigError, match="no episode with values has a record"):
        calibrate([])


SETTINGS: dict[str, Any] = {
    "version": 2,
    "env": {"name": "talk", "options": {}, "mixture": None},
    "agent": {"name": "act"},
    "horizon": {"max_turns": [8]},
    "episode": {"max_tokens_per_turn": 8},
    "algorithm": {"adv_estimator": "gae", "gamma": 1.0},
}


def record(group: str = "g", sample: int = 0, shaped: float = 1.0, step: int = 3, **meta: Any) -> EpisodeRecord:
    """Return a record of two turns, of which the second earns the reward 1."""
    place = EpisodeMeta("train", "train", step, group, sample, STARTED, seconds=1.0, shaped_return=shaped, **meta)
    return played(("north", "hall"), ("east", "kitchen"), reward=1.0, meta=place)


def token_row(group: str = "g", sample: int = 0, values: tuple[float, ...] = (0.25, 9, 9, 0.75, 9)) -> TokenRow:
    """A prompt of one token, a reply of two, an observation of one, and a reply of two."""
    turns = [-1, 0, 0, -1, 1, 1]
    return TokenRow(group, sample, 0, 3, 1, [5, 6, 7, 8, 6, 7], [True] * 6, turns, {"values": list(values)})


def write_run(folder: Path, *records: EpisodeRecord, rows: tuple[TokenRow, ...] = (), **sections: Any) -> Path:
    (folder / "metrics").mkdir(parents=True)
    (folder / "episodes").mkdir()
    (folder / "run.json").write_text(json.dumps(SETTINGS | sections))
    (folder / "episodes" / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    write_tokens(training_file(folder, 3), rows or (token_row(),), str)
    return folder


def pairs(run: Path, *records: EpisodeRecord) -> list[tuple[float, float]]:
    """Return prediction and return of each turn, in order of turns."""
    by_key = {(one["group"], one["sample"]): one for one in records}
    found = predictions(run, read_values(training_file(run, 3)), lambda group, sample: by_key.get((group, sample)))
    return sorted((one.value, one.realized) for one in found)


def test_the_value_of_a_turn_is_that_before_its_first_token(tmp_path: Path):
    file = training_file(write_run(tmp_path / "run"), 3)
    assert read_turn_values(file) == {("g", 0): {0: TurnValue(0.25, 2), 1: TurnValue(0.75, 2)}}


@pytest.mark.parametrize(
    ("sections", "shaped", "returns"),
    [
        ({}, 1.0, (1.0, 1.0)),
        ({"algorithm": {"adv_estimator": "gae", "gamma": 0.5}}, 1.0, (0.125, 0.5)),
        ({"algorithm": {"adv_estimator": "turn_gae"}, "credit": {"turn_gamma": 0.5}}, 1.0, (0.5, 1.0)),
        ({"credit": {"step_cost": 0.25, "place": "turn"}}, 0.5, (0.5, 0.75)),
        ({"credit": {"step_cost": 0.25}}, 0.5, (0.5, 0.5)),
    ],
)
def test_the_return_is_that_of_the_update(tmp_path: Path, sections: dict, shaped: float, returns: tuple[float, float]):
    """The reward 1 of the second turn, shaped and discounted as the run does."""
    one = record(shaped=shaped)
    run = write_run(tmp_path / "run", one, **sections)
    first, second = pairs(run, one)
    assert (first, second) == ((0.25, pytest.approx(returns[0])), (0.75, pytest.approx(returns[1])))


def test_the_entry_of_a_mixture_is_the_one_of_the_label(tmp_path: Path):
    mixture = [{"name": "talk", "label": "cheap"}, {"name": "talk", "label": "dear", "credit": {"step_cost": 0.25}}]
    one = record(shaped=0.5, env_label="dear")
    run = write_run(tmp_path / "run", one, env={"name": "two", "mixture": mixture})
    assert [realized for _, realized in pairs(run, one)] == [0.5, 0.5]
    assert pairs(run, record(shaped=0.9, env_label="dear")) == [], "the entry did not give this return"


def test_a_bootstrapped_episode_has_no_return_of_its_own(tmp_path: Path):
    episode = to_episode(record())
    episode.stop = type(episode.stop)("turn_limit")
    episode.success_reward = 2.0
    cut = to_record(episode, EpisodeMeta("train", "train", 3, "g", 0, STARTED, 1.0, shaped_return=1.0))
    assert pairs(write_run(tmp_path / "run", cut, credit={"truncated": "bootstrap"}), cut) == []


def test_the_critic_of_a_run_is_compared_at_a_recorded_step(tmp_path: Path):
    first, second = token_row(), token_row(sample=1, values=(0.5, 0, 0, 0.5, 0))
    records = (record(), record(sample=1, step=2), record(sample=1, shaped=0.0), record(sample=1, attempt=2))
    run = write_run(tmp_path / "run", *records, rows=(first, second))
    found = of_step(run, 3)
    assert (found.turns, found.groups, found.bias) == (4, 1, -0.5), "the last attempt counts"
    with pytest.raises(ConfigError, match=r"step_4\.parquet holds no token data"):
        of_step(run, 4)
    write_tokens(training_file(run, 3), [TokenRow("g", 0, 0, 3, 1, [5, 6], [False, True], [-1, 0], {})], str)
    with pytest.raises(ConfigError, match="the run has no critic"):
        of_step(run, 3)


def test_a_run_without_settings_is_an_error(tmp_path: Path):
    run = write_run(tmp_path / "run", record())
    (run / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"run\.json is missing"):
        of_step(run, 3)


def test_the_chart_shows_bins_intervals_and_the_line_of_a_perfect_critic():
    found = calibrate(drawn(bias=0.5), bins=4)
    bins, intervals, perfect = (series["data"] for series in calibration_chart(found)["series"])
    assert len(bins) == 4
    assert len(intervals) == 12
    assert all(x == y for x, y in perfect)
    assert describe_calibration(found).startswith("2000 turns of 40 tasks: explained variance")
    assert "predictions are 0.5 above the return" in describe_calibration(found)
