"""Test that the viewer counts each step of a resumed run once, and keeps evaluations in one folder apart."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.episodes import STARTED, played
from verl_agent.results.results import summarize
from verl_agent.trace.abandoned import ABANDONED_FILE, add_abandoned, dispatched_after, read_abandoned
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose
from verl_agent.trace.record_files import read_records
from verl_agent.viewer import queries
from verl_agent.viewer.export.write import export_episodes
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.listings import count_groups, list_groups
from verl_agent.viewer.sources import open_source, open_sources
from verl_agent.viewer.state import ViewerState

LATER = STARTED + timedelta(hours=1)


def episode(
    group: str,
    sample: int,
    reward: float,
    at: datetime = STARTED,
    step: int = 5,
    purpose: Purpose = "train",
    attempt: int = 1,
) -> EpisodeRecord:
    meta = EpisodeMeta(purpose, "train", step, group, sample, at, seconds=1.0, attempt=attempt)
    return played(("north", "hall"), reward=reward, meta=meta)


def write(path: Path, *records: EpisodeRecord) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def start(run: Path, at: datetime) -> None:
    (run / "metrics").mkdir(parents=True, exist_ok=True)
    (run / "metrics" / f"{at - timedelta(minutes=1):%Y%m%dT%H%M%S}.jsonl").touch()


def test_a_step_that_a_resumed_run_plays_again_counts_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(run, STARTED)
    write(run / "episodes" / "a.jsonl", episode("a", 0, 1.0), episode("a", 1, 1.0), episode("b", 0, 1.0, step=4))
    with RecordIndex(open_source(run)) as index:
        index.update()
        assert queries.count_uniform_groups(index) == {5: (1, 1)}
        start(run, LATER)
        workers = [episode("c", number, float(number), LATER + timedelta(minutes=number)) for number in (0, 1)]
        for number, record in enumerate(workers):
            write(run / "episodes" / f"b{number}.jsonl", record)
        index.update()
        four, five = queries.summarize_steps(index, Filter())
        assert (four.step, four.episodes, four.reward) == (4, 1, 1.0)
        assert (five.step, five.episodes, five.reward) == (5, 2, 0.5)
        assert queries.count_uniform_groups(index) == {5: (0, 1)}
        assert [row["group"] for row in list_groups(index, Filter(), 9)] == ["c"]
        rows = queries.find_episodes(index, Filter.parse({"step": "5"}))
        assert {row["group"]: row["replaced"] for row in rows} == {"a": 1, "c": 0}
        for number in (0, 1):
            (run / "episodes" / f"b{number}.jsonl").unlink()
        write(run / "episodes" / "c.jsonl", episode("d", 0, 1.0, LATER, step=6))
        index.update()
        assert [at.episodes for at in queries.summarize_steps(index, Filter())] == [1, 2, 1]


def test_a_group_that_a_resumed_run_plays_again_in_another_step_counts_once(tmp_path: Path) -> None:
    """Asynchronous rollout: group `b` was in flight at the checkpoint of step 5, and one of its episodes had ended."""
    run = tmp_path / "run"
    start(run, STARTED)
    write(run / "episodes" / "a.jsonl", *(episode("a", sample, 1.0) for sample in (0, 1)), episode("b", 0, 0.0))
    with RecordIndex(open_source(run)) as index:
        index.update()
        assert [at.episodes for at in queries.summarize_steps(index, Filter())] == [3]
        start(run, LATER)
        add_abandoned(run, ["b"])
        index.update()
        assert [(at.step, at.episodes) for at in queries.summarize_steps(index, Filter())] == [(5, 2)]
        again = [episode("c", sample, 0.5, LATER, step=6) for sample in (0, 1)]
        write(run / "episodes" / "b.jsonl", *again)
        index.update()
        steps = queries.summarize_steps(index, Filter())
        assert [(at.step, at.episodes, at.reward) for at in steps] == [(5, 2, 1.0), (6, 2, 0.5)]
        rows = queries.find_episodes(index, Filter())
        assert {row["group"]: row["replaced"] for row in rows} == {"a": 0, "b": 1, "c": 0}


def test_groups_are_added_to_a_file_whose_last_line_a_killed_run_left_unfinished(tmp_path: Path) -> None:
    assert read_abandoned(tmp_path) == set()
    add_abandoned(tmp_path, ["0000001-0", "0000001-1"])
    file = tmp_path / ABANDONED_FILE
    file.write_text(file.read_text()[:-3])
    add_abandoned(tmp_path, ["0000002-0"])
    assert read_abandoned(tmp_path) == {"0000001-0", "0000002-0"}


def test_a_resumed_evaluation_counts_the_episode_that_it_played_again(tmp_path: Path) -> None:
    """The first start ended with two environment errors; attempts of the second one count from 1 again."""
    failed = [episode("a", 0, 0.0, purpose="evaluation", attempt=number) | {"stop": "env_error"} for number in (1, 2)]
    write(tmp_path / "episodes.jsonl", *failed, episode("a", 0, 1.0, LATER, purpose="evaluation"))
    with RecordIndex(open_source(tmp_path)) as index:
        index.update()
        (step,) = queries.summarize_steps(index, Filter())
        assert (step.episodes, step.reward) == (1, 1.0)
        assert [row["retried"] for row in queries.find_episodes(index, Filter.parse({"sort": "started_at"}))] == [
            1,
            1,
            0,
        ]


def test_exported_records_end_with_the_attempt_that_counts(tmp_path: Path) -> None:
    """As above; results take the last record of an episode."""
    failed = [episode("a", 0, 0.0, purpose="evaluation", attempt=number) | {"stop": "env_error"} for number in (1, 2)]
    write(tmp_path / "eval" / "episodes.jsonl", *failed, episode("a", 0, 1.0, LATER, purpose="evaluation"))
    assert export_episodes([tmp_path / "eval"], tmp_path / "all.jsonl") == 3
    (result,) = summarize(read_records(tmp_path / "all.jsonl"))
    assert (result.episodes, result.env_errors) == (1, 0)


def test_exported_records_have_each_step_of_a_resumed_run_once(tmp_path: Path) -> None:
    for at, reward in ((STARTED, 0.0), (LATER, 1.0)):
        start(tmp_path / "run", at)
        write(tmp_path / "run" / "episodes" / f"{reward}.jsonl", episode("a", 0, reward, at, purpose="validation"))
    assert export_episodes([tmp_path / "run"], tmp_path / "all.jsonl") == 1
    assert [record["reward"] for record in read_records(tmp_path / "all.jsonl")] == [1.0]
    assert export_episodes([tmp_path / "run"], tmp_path / "all.html") == 1


def test_a_validation_does_not_hide_training_episodes_of_the_same_name(tmp_path: Path) -> None:
    other = episode("a", 0, 0.0, purpose="validation", attempt=2)
    write(tmp_path / "episodes.jsonl", episode("a", 0, 1.0), episode("a", 1, 1.0), other)
    with RecordIndex(open_source(tmp_path)) as index:
        index.update()
        assert {at.purpose: at.episodes for at in queries.summarize_steps(index, Filter())} == {
            "train": 2,
            "validation": 1,
        }


def test_episodes_of_two_models_are_two_groups(tmp_path: Path) -> None:
    records = [
        episode("1", sample, float(sample), step=0, purpose="evaluation", attempt=attempt) | {"model": model}
        for model, attempt in (("a", 1), ("b", 2))
        for sample in (0, 1)
    ]
    write(tmp_path / "all.jsonl", *records)
    with RecordIndex(open_source(tmp_path / "all.jsonl")) as index:
        index.update()
        assert count_groups(index, Filter()) == (2, 0)
        for model in "ab":
            found = queries.find_group(index, "1", 0, "evaluation", "talk", model)
            assert [row["model"] for row in found.episodes] == [model, model]
        assert len(queries.find_group(index, "1", 0, "evaluation").episodes) == 2


def test_a_folder_of_runs_and_evaluations_opens_each_of_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "episodes.jsonl", episode("1", 0, 1.0, purpose="evaluation"))
    start(tmp_path / "run", datetime.now(UTC))
    write(tmp_path / "run" / "episodes" / "a.jsonl", episode("1", 0, 1.0))
    state = ViewerState([tmp_path])
    assert {key: opened.source.kind for key, opened in state.opened.items()} == {
        "a": "evaluation",
        "b": "evaluation",
        "run": "training",
    }
    state.close()
    write(tmp_path / "more.jsonl", episode("1", 0, 1.0))
    assert [source.path for source in open_sources(tmp_path)] == [tmp_path]


def test_groups_that_a_killed_start_dispatched_after_its_checkpoint_are_found(tmp_path: Path) -> None:
    groups = ["0000002-000000001-a", "0000003-000000002-b", "0000004-000000003-c"]
    write(tmp_path / "x.jsonl", *(episode(group, number, 0.0) for group in groups for number in (0, 1)))
    write(tmp_path / "y.jsonl", episode("a group of a validation", 0, 0.0, purpose="validation"))
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write('{"purpose": "train", "group": "0000005-000000004-d", "sam')
    assert dispatched_after(tmp_path, 2) == [*groups[1:], "0000005-000000004-d"]
    assert dispatched_after(tmp_path, 0) == [*groups, "0000005-000000004-d"]
    assert dispatched_after(tmp_path, 5) == dispatched_after(tmp_path / "missing", 0) == []


def test_a_damaged_byte_in_the_name_of_a_group_keeps_no_run_from_resuming(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", episode("0000003-000000002-b", 0, 0.0), episode("0000004-000000003-c", 0, 0.0))
    content = (tmp_path / "x.jsonl").read_bytes()
    (tmp_path / "x.jsonl").write_bytes(content.replace(b"000000002-b", b"000000002-\xe2"))
    assert dispatched_after(tmp_path, 2) == ["0000003-000000002-\ufffd", "0000004-000000003-c"]
    (tmp_path / ABANDONED_FILE).write_bytes(b"0000003-000000002-\xe2\n0000004-000000003-c\n")
    assert "0000004-000000003-c" in read_abandoned(tmp_path)


def test_data_of_a_task_is_not_taken_for_a_group(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", episode("a group of a validation", 0, 0.0) | {"data": {"group": "0000009-other"}})
    assert dispatched_after(tmp_path, 0) == []


def test_attempts_in_any_order_and_lines_written_twice_count_once_in_pages_and_reports(tmp_path: Path) -> None:
    failed = episode("a", 0, 0.0) | {"stop": "env_error", "success": False, "error": "x"}
    again = [episode("a", sample, 1.0, LATER, attempt=2) for sample in (0, 1)]
    twice = [episode("b", 0, 1.0), episode("b", 1, 0.0), episode("b", 0, 1.0)]
    file = tmp_path / "episodes.jsonl"
    write(file, *again, failed, failed | {"sample": 1}, *twice)  # type: ignore[arg-type]
    with RecordIndex(open_source(file)) as index:
        index.update()
        (shown,) = queries.summarize_steps(index, Filter())
    reported = summarize(read_records(file))[-1]
    assert (shown.episodes, shown.env_errors, shown.reward) == (4, 0, 0.75)
    assert (reported.episodes, reported.env_errors) == (4, 0)
    assert reported.mean_return is not None and reported.mean_return.mean == 0.75
