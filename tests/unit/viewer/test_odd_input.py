"""Test that odd records, labels and URLs cost the viewer one line or one message, and never the run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.episodes import played, talk
from verl_agent.errors import ConfigError
from verl_agent.trace.labels import Label, LabelFile, key_of
from verl_agent.viewer.export.write import export_episodes
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.index import RecordIndex
from verl_agent.viewer.pages.listing import page_number, whole_number
from verl_agent.viewer.parsing import read_lines
from verl_agent.viewer.queries import count_episodes, find_episodes
from verl_agent.viewer.sources import open_source
from verl_agent.viewer.state import ViewerState
from verl_agent.viewer.why import record_place


def write(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize("odd", ['{"version": 2, "step": 1e', json.dumps(talk() | {"step": 2**70}), "[" * 100_000])
def test_a_line_that_cannot_be_stored_is_listed_and_the_next_ones_are_read(tmp_path: Path, odd: str) -> None:
    with RecordIndex(open_source(write(tmp_path / "run", odd, json.dumps(talk())))) as index:
        assert index.update() == 1
        assert index.count_bad_lines() == 1


def test_a_process_of_its_own_parses_long_files_to_the_same_rows(tmp_path: Path) -> None:
    odd = [
        json.dumps(talk() | {"step": 2**70}),
        "[" * 100_000,
        json.dumps(played(("x\ud800y", "see"))),
        '{"version": 2',
    ]
    lines = [json.dumps(talk()), *odd] * 30
    file = write(tmp_path / "run", *lines) / "episodes.jsonl"
    with file.open("a") as out:
        out.write(json.dumps(talk()))  # without a line break: not complete yet
    here = list(read_lines(file, 0))
    assert len(here) == len(lines) and [line.row is None for line in here[:5]] == [False, False, True, False, True]
    assert list(read_lines(file, 0, long=0)) == here
    assert list(read_lines(file, here[140].offset, long=0)) == here[140:]
    some = read_lines(file, 0, long=0)
    assert next(some) == here[0]
    some.close()  # type: ignore[attr-defined]  # ends the process


def test_half_of_a_surrogate_pair_in_any_text_is_indexed_found_and_exported(tmp_path: Path) -> None:
    odd = played(("x\ud800y", "see\udc80")) | {"category": "c\ud800", "error": "\ud800", "model": "\ud800"}
    run = write(tmp_path / "run", json.dumps(odd), json.dumps({"version": "\ud800"}), json.dumps({"\ud800": 1}))
    LabelFile.of(run).change(key_of(odd), Label(("good",), "note \ud800"))
    with RecordIndex(open_source(run)) as index:
        assert index.update() == 1
        for parameters in ({"category": "c\ud800"}, {"text": "x\ud800y"}, {"label": "good"}, {"model": "\ud800"}):
            assert count_episodes(index, Filter.parse(parameters)) == 1, parameters
    for name in ("page.html", "log.eval", "all.parquet", "all.jsonl"):
        assert export_episodes([run], tmp_path / name, "label=good") == 1, name


def test_labels_that_cannot_be_read_are_a_message_beside_the_episodes(tmp_path: Path) -> None:
    run = write(tmp_path / "run", json.dumps(talk()))
    (run / "labels.json").write_text("{")
    state = ViewerState([run])
    opened = state.get("run")
    state._update(opened)
    assert count_episodes(opened.index, Filter()) == 1
    assert (opened.problem, "Repair or delete it" in opened.labels_problem) == ("", True)
    (run / "labels.json").unlink()
    state._update(opened)
    assert opened.labels_problem == ""
    state.close()


def test_a_label_with_a_number_above_64_bits_is_a_config_error(tmp_path: Path) -> None:
    run = write(tmp_path / "run", json.dumps(talk()))
    LabelFile.of(run).change(key_of(talk() | {"step": 2**70}), Label(("good",)))
    with RecordIndex(open_source(run)) as index, pytest.raises(ConfigError, match="Repair or delete"):
        index.update_labels()


def test_a_text_with_nul_is_searched_without_it(tmp_path: Path) -> None:
    with RecordIndex(open_source(write(tmp_path / "run", json.dumps(played(("north", "hall")))))) as index:
        index.update()
        assert len(find_episodes(index, Filter.parse({"text": "\0"}))) == 0
        assert len(find_episodes(index, Filter.parse({"text": "north\0hall"}))) == 1


@pytest.mark.parametrize("value", ["", "-1", "1.5", "٣", "²", "9" * 20, "9" * 4400])
def test_a_number_of_a_url_that_the_index_cannot_hold_is_refused_in_a_short_message(value: str) -> None:
    with pytest.raises(ConfigError, match="whole numbers from 0") as caught:
        whole_number("episode", value)
    assert len(str(caught.value)) < 150
    with pytest.raises(ConfigError, match="page="):
        page_number(SimpleNamespace(query_params={"page": value}))  # type: ignore[arg-type]
    assert whole_number("episode", "12") == 12


def test_a_folder_whose_name_is_not_utf_8_is_indexed_and_read(tmp_path: Path) -> None:
    run = write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/run \xff")), json.dumps(talk()), "{")
    state = ViewerState([run])
    (opened,) = state.opened.values()
    state._update(opened)
    assert opened.problem == "" and count_episodes(opened.index, Filter()) == 1
    assert opened.index.read(1)["task"] == talk()["task"]
    assert opened.index.bad_lines()[0].file == run / "episodes.jsonl"
    place = record_place(opened.index, 1)
    assert place is not None and place.file == run / "episodes.jsonl"
    assert opened.index.update() == 0, "the file is known"
    state.close()


def test_more_runs_are_opened_than_the_soft_limit_of_open_files_allows(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / f"run{number}", json.dumps(talk()))
    program = (
        "import resource, sys; from verl_agent.viewer.state import ViewerState;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; most = int(sys.argv[2]) or hard;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, most)); print(len(ViewerState([sys.argv[1]]).opened))"
    )
    enough, few = (
        subprocess.run([sys.executable, "-c", program, str(tmp_path), most], capture_output=True, text=True)
        for most in ("0", "60")
    )
    assert enough.stdout == "20\n", enough.stderr
    assert "20 runs need up to 160 open files, and this system allows 60" in few.stderr


@pytest.mark.parametrize("name", ["r" * 251, "ä" * 120])
def test_a_folder_with_the_longest_name_is_viewed(tmp_path: Path, name: str) -> None:
    with RecordIndex(open_source(write(tmp_path / name, json.dumps(talk())))) as index:
        assert index.update() == 1
