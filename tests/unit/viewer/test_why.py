"""Test the places that the viewer's commands name, and the words for stored answers."""

import json
from pathlib import Path

from tests.support.episodes import talk
from tests.support.what_if import replies_of
from verl_agent.evaluation.what_if.recorded import find_episode
from verl_agent.evaluation.what_if.results import SampledReply
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.sources import open_source
from verl_agent.viewer.why import describe_samples, record_place


def test_the_viewer_names_an_episode_as_the_command_reads_it(tmp_path: Path):
    """Invalid lines of the same file count, and other files do not."""
    lines = [json.dumps(talk(task=str(number))) for number in range(6)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:2]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join([lines[2], "broken", "", lines[3], "{}", lines[4]]) + "\n")
    with RecordIndex(open_source(tmp_path)) as index:
        index.update()
        for row in index.db.execute("SELECT id, task FROM episodes").fetchall():
            place = record_place(index, row["id"])
            assert place is not None
            found = find_episode(f"{place.file}:{place.line}")
            assert (found.record["task"], found.fingerprint) == (row["task"], place.fingerprint)
        assert record_place(index, 99) is None
        (tmp_path / "b.jsonl").unlink()
        assert record_place(index, 5) is None


def test_a_command_quotes_the_path(tmp_path: Path):
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps(talk()) + "\n")
    with RecordIndex(open_source(folder)) as index:
        index.update()
        place = record_place(index, 1)
    assert place is not None
    assert place.command(3, " --oracle") == f"verl-agent what-if '{folder}/a.jsonl:1' --turn 3 --oracle"


def test_stored_answers_are_counted(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps(talk()) + "\n")
    recorded = find_episode(f"{tmp_path}/a.jsonl:1")
    assert describe_samples([]) == ""
    one = SampledReply(text="a", action="a", tokens=1)
    assert describe_samples([replies_of(recorded, 1, [one, one]), replies_of(recorded, 1, [one])]) == "(3 replies)"
