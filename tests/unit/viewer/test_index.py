"""Test that the index follows growing, truncated and replaced files, and that filters and queries read it."""

import json
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.episodes import STARTED, played
from verl_agent.errors import ConfigError
from verl_agent.results.results import summarize
from verl_agent.trace.labels import Label, LabelFile, key_of
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord
from verl_agent.viewer import queries
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.listings import count_groups, count_tasks, list_groups, list_tasks
from verl_agent.viewer.pairs import an_evaluation, compare_pairs, pair_tasks
from verl_agent.viewer.sources import open_source
from verl_agent.viewer.stages import find_stages, mean_limits, need_range, needs_of
from verl_agent.viewer.storage import explained
from verl_agent.viewer.tables import TABLES


def episode(task: str = "1", step: int = 1, sample: int = 0, **options: Any) -> EpisodeRecord:
    meta = EpisodeMeta(
        "train", "train", step, f"{task}-{step}", sample, STARTED, seconds=1.0, attempt=options.pop("attempt", 1)
    )
    turns = options.pop("turns", [("north", "hall"), ("east", "kitchen")])
    return played(*turns, task=task, meta=meta, **options)


def write(path: Path, *records: EpisodeRecord, end: str = "\n", mode: str = "a") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write("\n".join(map(json.dumps, records)) + end)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "metrics").mkdir(parents=True)
    write(folder / "episodes" / "a.jsonl", episode("1"), episode("2"))
    return folder


@contextmanager
def indexed(path: Path) -> Iterator[RecordIndex]:
    """Open the index of a run or file, and read its records."""
    with RecordIndex(open_source(path)) as index:
        index.update()
        yield index


def tasks(index: RecordIndex, **parameters: str) -> list[str]:
    return [row["task"] for row in queries.find_episodes(index, Filter.parse(parameters))]


def test_the_index_reads_only_what_was_appended(run: Path) -> None:
    with RecordIndex(open_source(run)) as index:
        assert index.update() == 2
        assert index.update() == 0
        write(run / "episodes" / "a.jsonl", episode("3"))
        write(run / "episodes" / "b.jsonl", episode("4"))
        assert index.update() == 2
        assert tasks(index) == ["1", "2", "3", "4"]


def test_a_poll_of_unchanged_files_writes_nothing(run: Path) -> None:
    with indexed(run) as index:
        before = index._db.total_changes
        assert index.update() == 0
        assert index._db.total_changes == before


def test_a_torn_last_line_is_read_when_it_is_complete(run: Path) -> None:
    file = run / "episodes" / "a.jsonl"
    line = json.dumps(episode("3"))
    with RecordIndex(open_source(run)) as index:
        write(file, end=line[:50])
        assert index.update() == 2
        write(file, end=line[50:] + "\n")
        assert index.update() == 1
        assert index.bad_lines() == []


def test_an_invalid_line_is_listed_and_the_rest_is_read(run: Path) -> None:
    write(run / "episodes" / "a.jsonl", end='{"version": 99}\nnot json\n')
    write(run / "episodes" / "a.jsonl", episode("3"))
    with RecordIndex(open_source(run)) as index:
        assert index.update() == 3
        assert [("version 99" in bad.message) for bad in index.bad_lines()] == [True, False]


def test_half_a_surrogate_pair_does_not_stop_the_index(run: Path) -> None:
    write(run / "episodes" / "a.jsonl", episode("3", turns=[("say \ud83d", "odd \udc80")]), episode("4"))
    with indexed(run) as index:
        assert tasks(index) == ["1", "2", "3", "4"]
        assert tasks(index, text="odd") == ["3"]


def test_a_truncated_file_is_read_anew(run: Path) -> None:
    with indexed(run) as index:
        write(run / "episodes" / "a.jsonl", episode("9"), mode="w")
        index.update()
        assert tasks(index) == ["9"]
        assert tasks(index, text="hall") == ["9"]


def test_a_replaced_file_of_the_same_size_is_read_anew(run: Path) -> None:
    with indexed(run) as index:
        other = write(run / "episodes" / "new", episode("8"), episode("9"))
        os.replace(other, run / "episodes" / "a.jsonl")
        index.update()
        assert tasks(index) == ["8", "9"]


def test_a_file_cut_behind_its_first_line_or_replaced_behind_it_is_read_anew(run: Path) -> None:
    with indexed(run) as index:
        write(run / "episodes" / "a.jsonl", episode("1"), mode="w")
        index.update()
        assert tasks(index) == ["1"]
        os.replace(write(run / "new", episode("1"), episode("7")), run / "episodes" / "a.jsonl")
        index.update()
        assert tasks(index) == ["1", "7"]


def test_a_deleted_file_is_forgotten(run: Path) -> None:
    write(run / "episodes" / "b.jsonl", episode("4"))
    with indexed(run) as index:
        (run / "episodes" / "b.jsonl").unlink()
        index.update()
        assert tasks(index) == ["1", "2"]


def test_an_index_of_another_version_or_a_broken_one_is_built_anew(run: Path) -> None:
    with indexed(run) as index:
        index.db.execute("PRAGMA user_version = 999")
        path = index.path
    with RecordIndex(open_source(run)) as index:
        assert index.update() == 2
    path.write_bytes(b"no database at all" * 1000)
    with RecordIndex(open_source(run)) as index:
        assert index.update() == 2


def test_an_index_whose_marks_follow_other_rules_is_built_anew(run: Path) -> None:
    """A change of a rule alone leaves the tables as they are."""
    of_tables = zlib.crc32("\n".join(TABLES).encode()) & 0x7FFFFFFF
    with indexed(run) as index:
        index.db.execute("UPDATE episodes SET retried = 1")
        index.db.execute(f"PRAGMA user_version = {of_tables}")
    with indexed(run) as index:
        assert [row["retried"] for row in queries.find_episodes(index, Filter())] == [0, 0]


def test_two_viewers_share_an_index(run: Path) -> None:
    with RecordIndex(open_source(run)) as first, RecordIndex(open_source(run)) as second:
        first.update()
        assert second.update() == 0
        assert tasks(second) == ["1", "2"]


def test_the_whole_record_is_read_from_its_file(run: Path) -> None:
    with indexed(run) as index:
        (row,) = queries.find_episodes(index, Filter.parse({"task": "2"}))
        assert index.read(row["id"]) == episode("2")
        write(run / "episodes" / "a.jsonl", end="", mode="w")
        with pytest.raises(ConfigError, match="no longer"):
            index.read(row["id"])


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"step": "2"}, ["2"]),
        ({"step": "2..3"}, ["2", "3"]),
        ({"step": "..1"}, ["1"]),
        ({"reward": "0.5.."}, ["3"]),
        ({"success": "yes"}, ["3"]),
        ({"success": "1"}, ["3"]),  # as the table shows it
        ({"text": 'kitchen" OR *'}, []),
        ({"text": "attic"}, ["3"]),
        ({"repeated_action": "1.."}, ["3"]),
        ({"task": "1"}, ["1"]),
        ({"purpose": "train,validation", "sort": "-step"}, ["3", "2", "1"]),
    ],
)
def test_filters_select_episodes(tmp_path: Path, parameters: dict[str, str], expected: list[str]) -> None:
    third = episode("3", step=3, reward=1.0, turns=[("north", "hall"), ("north", "attic")])
    file = write(tmp_path / "episodes.jsonl", episode("1"), episode("2", step=2), third)
    with indexed(file) as index:
        assert tasks(index, **parameters) == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"steps": "1"}, "Did you mean 'step'"),
        ({"step": "one"}, "3..7"),
        ({"success": "maybe"}, "yes, no"),
        ({"label": ",", "success": "no"}, "names no tag"),
        ({"sort": "-rewards"}, "reward"),
        ({"tags": "odd"}, "unknown filter 'tags'"),
    ],
)
def test_an_invalid_filter_is_refused(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Filter.parse(parameters)


def test_a_category_with_a_comma_is_found_by_its_name(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", episode("1") | {"category": "shop, map"}, episode("2") | {"category": "shop"})
    with indexed(tmp_path / "a.jsonl") as index:
        assert tasks(index, category="shop, map") == ["1", "2"]
        assert tasks(index, category="shop") == ["2"]


def test_steps_count_the_last_attempt_and_leave_environment_errors_out(tmp_path: Path) -> None:
    lost = episode("1", sample=1)
    lost |= {"stop": "env_error", "error": "broken"}
    first_attempt = episode("1", sample=0) | {"stop": "env_error"}
    file = write(
        tmp_path / "episodes.jsonl",
        first_attempt,
        episode("1", sample=0, attempt=2, reward=1.0),
        lost,
        episode("2", step=2),
    )
    with indexed(file) as index:
        first, second = queries.summarize_steps(index, Filter())
    assert (first.step, first.episodes, first.env_errors, first.success) == (1, 1, 1, 1.0)
    assert first.stops == {"terminated": 0.5, "env_error": 0.5}
    assert (second.step, second.success, second.turns) == (2, 0.0, 2.0)


def test_episodes_in_which_a_person_intervened_are_in_no_rate(tmp_path: Path) -> None:
    helped, ended = episode("1", sample=1, reward=1.0), episode("1", sample=2) | {"stop": "operator"}
    helped["turns"][0]["author"] = "person"
    records = [episode("1"), helped, ended]
    with indexed(write(tmp_path / "episodes.jsonl", *records)) as index:
        assert [row["operated"] for row in queries.find_episodes(index, Filter())] == [0, 1, 1]
        (step,) = queries.summarize_steps(index, Filter())
        assert (step.episodes, step.success) == (1, 0.0)
        assert step.stops == pytest.approx({"terminated": 2 / 3, "operator": 1 / 3})
        assert queries.summarize_steps(index, Filter.parse({"sample": "0.."})) == [step]
        assert queries.success_rates(index) == {("train", 1): summarize(records)[-1].success}
        assert [at.success for at in queries.task_history(index, "talk", "1")] == [0.0]
        assert list_tasks(index, Filter())[0]["episodes"] == 1
        assert queries.find_group(index, "1-1", 1, "train").advantages == [0.0, 0.0, 0.0]
        assert list_groups(index, Filter(), 10) == []


def test_a_group_shows_where_its_samples_part(tmp_path: Path) -> None:
    other = [("north", "hall"), ("west", "yard")]
    file = write(tmp_path / "episodes.jsonl", episode("1"), episode("1", sample=1, turns=other))
    with indexed(file) as index:
        group = queries.find_group(index, "1-1", 1, "train")
        assert queries.mean_divergence(index) == {1: 2.0}
        (listed,) = list_groups(index, Filter(), 10)
        assert queries.count_episodes(index, Filter.parse({"divergence_turn": "2"})) == 2
        assert queries.count_episodes(index, Filter.parse({"divergence_turn": "..1"})) == 0
    assert [row["sample"] for row in group.episodes] == [0, 1]
    assert (group.divergence, listed["divergence"]) == (1, 2)
    assert group.uniform


def test_sums_of_steps_groups_and_tasks_follow_a_file_that_grows_and_shrinks(tmp_path: Path) -> None:
    def sums(index: RecordIndex) -> list[object]:
        shutil.rmtree(tmp_path / "anew", ignore_errors=True)
        (tmp_path / "anew").mkdir()
        with RecordIndex(index.source, tmp_path / "anew") as anew:
            anew.update()
            for one in (index, anew):
                everything = Filter.parse({"sample": "0.."})  # as no table of sums knows samples, episodes are read
                assert queries.summarize_steps(one, Filter()) == queries.summarize_steps(one, everything)
                assert list_tasks(one, Filter()) == list_tasks(one, everything)
            assert list_groups(index, Filter(), 10) == list_groups(anew, Filter(), 10)
            assert find_stages(index) == find_stages(anew)
        return [at.episodes for at in queries.summarize_steps(index, Filter())]

    first = [episode("1"), episode("1", sample=1, reward=1.0), episode("2", step=2)]
    file = write(tmp_path / "episodes.jsonl", *first)
    with indexed(file) as index:
        assert sums(index) == [2, 1]
        write(file, episode("1", sample=1, attempt=2), episode("2", step=2, sample=1))
        index.update()
        assert sums(index) == [2, 2]
        write(file, first[0], mode="w")
        index.update()
        assert sums(index) == [1]


@pytest.mark.parametrize("sort", ["", "shaped_return", "-shaped_return", "-turns", "task"])
def test_the_next_episode_is_that_below_in_the_table(tmp_path: Path, sort: str) -> None:
    returns = [None, 0.5, 0.25, None, 0.5]
    records = [episode(str(number % 3), step=number % 2, sample=number) for number in range(5)]
    records = [
        record | ({} if value is None else {"shaped_return": value})
        for record, value in zip(records, returns, strict=True)
    ]
    chosen = Filter.parse({"sort": sort, "task": "0"} if sort == "-turns" else {"sort": sort})
    with indexed(write(tmp_path / "episodes.jsonl", *records)) as index:
        ids = queries.find_ids(index, chosen)
        assert [row["id"] for row in queries.find_episodes(index, chosen)] == ids
        for before, here, after in zip([None, *ids], ids, [*ids[1:], None], strict=False):
            assert queries.find_neighbors(index, here, chosen) == (before, after)
        assert queries.find_neighbors(index, ids[0], Filter.parse({"task": "none"})) == (None, None)


def test_tasks_are_followed_over_steps_and_paired_between_sources(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", episode("1"), episode("1", step=2, reward=1.0), episode("2"))
    two = write(tmp_path / "two.jsonl", episode("1", reward=1.0), episode("3"))
    with RecordIndex(open_source(one), tmp_path) as first, RecordIndex(open_source(two), tmp_path) as second:
        first.update()
        second.update()
        assert [(at.step, at.success) for at in queries.task_history(first, "talk", "1")] == [(1, 0.0), (2, 1.0)]
        (pair,) = pair_tasks(first, second, (Filter.parse({"step": "1"}), Filter()))
    assert (pair.task, pair.success) == ("1", (0.0, 1.0))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither metrics/ nor"):
        open_source(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        open_source(tmp_path / "missing")


def test_labels_are_a_filter_and_follow_their_file(run: Path) -> None:
    with indexed(run) as index:
        assert tasks(index, label="*") == []
        LabelFile.of(run).change(key_of(episode("1")), Label(("good", "lucky")))
        assert index.update_labels()
        assert not index.update_labels()
        assert tasks(index, label="good") == ["1"]
        assert tasks(index, label="good,-lucky") == []
        assert tasks(index, label="-bad") == ["1", "2"]
        assert tasks(index, label="goo") == []
        assert queries.find_labels(index) == {"good": 1, "lucky": 1}


def test_episodes_have_neighbors_in_the_order_of_a_filter(tmp_path: Path) -> None:
    file = write(tmp_path / "episodes.jsonl", *(episode(str(number), reward=number / 4) for number in range(1, 5)))
    with indexed(file) as index:
        chosen = Filter.parse({"reward": "0.5..", "sort": "-reward"})
        assert queries.find_neighbors(index, 3, chosen) == (4, 2)
        assert queries.find_neighbors(index, 4, chosen) == (None, 3)
        assert queries.find_neighbors(index, 1, chosen) == (None, None)


def test_stages_count_cut_episodes_and_success_by_needed_turns(tmp_path: Path) -> None:
    short, long = [("north", "hall")], [("north", "hall"), ("east", "yard"), ("east", "yard")]
    cut = episode("2", turns=short) | {"stop": "turn_limit", "max_turns": 1}
    file = write(
        tmp_path / "episodes.jsonl",
        episode("1", turns=short, reward=1.0) | {"max_turns": 1},
        cut,
        episode("2", step=2, turns=long, reward=1.0) | {"max_turns": 3},
        episode("3", step=3, turns=long) | {"max_turns": 3},
    )
    with indexed(file) as index:
        first, second = stages = find_stages(index)
        assert queries.needed_turns(index) == {1: 1, 3: 1}
    assert (first.first, first.last, first.max_turns, first.episodes, first.solved, first.cut) == (1, 1, 1, 2, 1, 1)
    assert (second.first, second.last, second.turns, second.cut) == (2, 3, 6, 0)
    assert first.by_need == {"1": (1, 1), "3": (1, 0)}
    assert needs_of(stages) == ["1", "3", "never solved"]
    assert [need_range(turns) for turns in (8, 9, 16, 17, None)] == ["8", "9-16", "9-16", "17-32", "never solved"]


def test_two_limits_of_a_mixture_at_the_same_steps_are_two_stages(tmp_path: Path) -> None:
    records = [episode("1", step, limit) | {"max_turns": limit} for step in (1, 2, 3) for limit in (4, 8)]
    with indexed(write(tmp_path / "episodes.jsonl", *records)) as index:
        stages = find_stages(index)
    assert [(one.max_turns, one.first, one.last, one.episodes) for one in stages] == [(4, 1, 3, 3), (8, 1, 3, 3)]


def test_limits_that_differ_within_a_step_have_a_mean_by_step(tmp_path: Path) -> None:
    limits = {1: (4, 4, 4), 2: (4, 4, 10), 3: (10, 10, 10)}
    records = [
        episode(f"{step}{number}", step, number) | {"max_turns": limit}
        for step, of_step in limits.items()
        for number, limit in enumerate(of_step)
    ]
    with indexed(write(tmp_path / "mixed.jsonl", *records)) as index:
        assert [*mean_limits(index).values()] == [[(1, 4), (2, 6), (3, 10)]]
    staged = [one for one in records if one["step"] != 2]
    with indexed(write(tmp_path / "staged.jsonl", *staged)) as index:
        assert mean_limits(index) == {}


def test_groups_tell_whether_they_teach_and_tasks_when_they_were_forgotten(tmp_path: Path) -> None:
    records = [episode("1", sample=sample, reward=float(sample)) for sample in range(2)]
    records += [episode("1", step=2, sample=sample) for sample in range(2)]
    broken = episode("1", step=2, sample=2, reward=1.0) | {"stop": "overlong_prompt"}
    with indexed(write(tmp_path / "episodes.jsonl", *records, broken)) as index:
        assert [row["spread"] for row in list_groups(index, Filter(), 10)] == [1.0, 0.0]
        assert count_groups(index, Filter()) == (2, 1)
        assert queries.count_uniform_groups(index) == {1: (0, 1), 2: (1, 1)}
        (task,) = list_tasks(index, Filter())
        assert count_tasks(index, Filter()) == {"all": 1, "never solved": 0, "solved": 1, "forgotten": 1}
        assert list_tasks(index, Filter(), "never solved") == list_tasks(index, Filter(), offset=1) == []
    assert (task["episodes"], task["first_solved"], task["forgotten"], task["curve"]) == (4, 1, 2, "0.5,0.0")


def test_a_comparison_counts_gained_and_lost_tasks_with_intervals(tmp_path: Path) -> None:
    repeated = [("north", "hall"), ("north", "yard")]
    one = write(tmp_path / "one.jsonl", episode("1", reward=1.0), episode("2"), episode("3"))
    two = write(tmp_path / "two.jsonl", episode("1"), episode("2", reward=1.0, turns=repeated), episode("3"))
    with RecordIndex(open_source(one), tmp_path) as first, RecordIndex(open_source(two), tmp_path) as second:
        first.update()
        second.update()
        pairs = pair_tasks(first, second, (Filter(), Filter()))
    assert [pair.change for pair in pairs] == ["lost", "gained", "failed"]
    result = compare_pairs(pairs)
    assert (result.success.mean, result.success.tasks) == (0.0, 3)
    assert result.gained is not None and (result.gained.mean, result.gained.tasks) == (0.5, 2)
    assert result.lost is not None and (result.lost.mean, result.lost.low < 0.3) == (1.0, True)
    assert result.behaviors["repeated_action"].mean == pytest.approx(0.5 / 3)


def test_the_last_evaluation_is_the_last_validated_step(tmp_path: Path) -> None:
    """A training goes on after it, and a failed validation measures nothing."""
    validated = [episode("1", at) | {"purpose": "validation"} for at in (2, 4)]
    failed = episode("1", 6) | {"purpose": "validation", "stop": "env_error"}
    with RecordIndex(open_source(write(tmp_path / "run.jsonl", episode("1", 5)))) as index:
        index.update()
        assert an_evaluation(index) == {}
        write(tmp_path / "run.jsonl", *validated, failed)
        index.update()
        assert an_evaluation(index) == {"step": "4", "purpose": "validation"}
        assert an_evaluation(index, first=True) == {"step": "2", "purpose": "validation"}


def test_the_temporary_index_of_a_folder_that_is_not_writable_is_removed(run: Path) -> None:
    (run / ".viewer").write_text("a file where the folder should be")
    with indexed(run) as index:
        assert tasks(index) == ["1", "2"] and index.path.parent.is_dir()
    assert not index.path.parent.exists()


def test_a_folder_beside_the_records_keeps_its_index(run: Path) -> None:
    with indexed(run) as index:
        path = index.path
    assert path.is_file()


def test_an_index_that_is_damaged_while_it_is_open_is_explained(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").write_bytes(b"not a database" * 100)
    damaged = pytest.raises(ConfigError, match=r"is damaged .*delete .*records are not changed")
    with damaged, explained(tmp_path / "index.sqlite"):
        sqlite3.connect(tmp_path / "index.sqlite").execute("SELECT * FROM episodes")


def test_a_deleted_run_is_reported_and_not_created_again(run: Path) -> None:
    with indexed(run) as index:
        shutil.rmtree(run)
        with pytest.raises(ConfigError, match="was deleted"):
            index.update()
        assert tasks(index) == ["1", "2"]
        assert not run.exists()


def test_a_full_disk_is_explained_and_leaves_the_records_alone(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*.jsonl")}
    with RecordIndex(open_source(run)) as index:
        index._db.execute("PRAGMA max_page_count = 1")  # SQLite then reports that the disk is full
        write(run / "episodes" / "b.jsonl", *(episode(str(number)) for number in range(300)))
        with pytest.raises(ConfigError, match=r"cannot be written .*full.*Free disk space"):
            index.update()
        index._db.execute("PRAGMA max_page_count = 1000000")
        index.update()
        assert queries.count_episodes(index, Filter()) == 302
    assert {path: path.read_bytes() for path in before} == before
