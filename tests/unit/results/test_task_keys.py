"""Test that two entries of a mixture with the same environment are different tasks in every result."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.support.episodes import STARTED, played
from verl_agent.envs.base import EnvAdapter
from verl_agent.results.comparison import compare
from verl_agent.results.failures import find_failures, summarize_failures
from verl_agent.results.results import final_records, summarize
from verl_agent.results.scaling import scaling_curves, success_by_task
from verl_agent.results.selectors import best_of_n
from verl_agent.trace.labels import Label, LabelFile, keep_labelled, key_of, read_labels
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord
from verl_agent.training.offline.selection import EpisodeSource, count_by_environment, select_episodes
from verl_agent.viewer import queries
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.listings import list_tasks
from verl_agent.viewer.sources import open_source

META = EpisodeMeta("train", "train", 1, "g", 0, STARTED, 1.0)


def record(label: str, sample: int, reward: float) -> EpisodeRecord:
    """Return an episode of the task `1` of an entry; both entries share group and sample."""
    return played((f"{label} {sample}", "Done."), reward=reward, meta=replace(META, sample=sample, env_label=label))


@pytest.fixture
def records() -> list[EpisodeRecord]:
    """Two samples of the same task in two entries: `easy` is always solved, `hard` never."""
    return [record(label, sample, float(label == "easy")) for label, sample in product(("easy", "hard"), (0, 1))]


def test_results_count_the_tasks_of_each_entry(records):
    assert len(final_records(records)) == 4
    overall = summarize(records)[-1]
    assert (overall.tasks, overall.episodes, overall.pass_at[2]) == (2, 4, 0.5)
    assert compare(records, records)[-1].difference.tasks == 2
    assert success_by_task(records) == {("easy", "1"): [1.0, 1.0], ("hard", "1"): [0.0, 0.0]}
    (pass_at,) = [curve for curve in scaling_curves(records) if curve.name == "pass@k"]
    assert (pass_at.points[2].mean, pass_at.points[2].tasks) == (0.5, 2)


def test_selectors_choose_among_the_samples_of_one_entry(records, tmp_path):
    oracle = next(one for one in best_of_n(records, tmp_path) if one.name == "oracle")
    assert (oracle.points[2].mean, oracle.points[2].tasks) == (0.5, 2)


def test_failures_name_the_entry(records):
    class Silent(EnvAdapter):
        def tasks(self, split):
            raise NotImplementedError

        async def reset(self, item):
            raise NotImplementedError

        async def step(self, action):
            raise NotImplementedError

    failures = find_failures(records, Silent())
    assert {failure.key for failure in failures} == {("hard", "1")}
    assert summarize_failures(records, failures)[0].tasks == 1


def test_demonstrations_are_chosen_for_each_entry():
    solved = [record(label, sample, 1.0) for label, sample in product(("easy", "hard"), (0, 1))]
    chosen = select_episodes(solved, EpisodeSource(oracle=False, records=["x"], per_task=1))
    assert count_by_environment(chosen) == {"easy": 1, "hard": 1}


def test_tags_belong_to_the_episode_of_one_entry(records, tmp_path):
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    with RecordIndex(open_source(file)) as index:
        index.update()
        row = next(
            row for row in index.db.execute("SELECT * FROM episodes") if (row["env"], row["sample"]) == ("hard", 0)
        )
        LabelFile.of(file).change(key_of(row), Label(("good",)))
    kept = keep_labelled(records, ["good"], read_labels([file]), "preference.labels")
    assert [one["env_label"] for one in kept] == ["hard"]


def test_the_viewer_keeps_the_entries_apart(records, tmp_path: Path):
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    with RecordIndex(open_source(file)) as index:
        index.update()
        assert {row["env"] for row in index.db.execute("SELECT env FROM task_sums")} == {"easy", "hard"}
        assert {(row["env"], row["uniform"]) for row in index.db.execute("SELECT * FROM groups")} == {
            ("easy", 1),
            ("hard", 1),
        }
        assert queries.summarize_steps(index, Filter({"env": "hard"}))[0].success == 0.0
        assert queries.summarize_steps(index, Filter({"env": "easy"}))[0].success == 1.0
        assert {(task["env"], task["task"]) for task in list_tasks(index, Filter())} == {("easy", "1"), ("hard", "1")}
