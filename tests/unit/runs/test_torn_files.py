"""Torn, empty and incomplete JSON files of the folder of a run: an error that names the file and the next step."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_agent.errors import ConfigError
from verl_agent.evaluation.recorded_play import read_play
from verl_agent.evaluation.suite.report import _without_result
from verl_agent.models.checkpoints import finish_checkpoint
from verl_agent.models.lora import _rank_and_alpha
from verl_agent.models.portable import make_portable
from verl_agent.results.failures_report import read_failures
from verl_agent.results.folder import REPORT, read_report
from verl_agent.runs.best_checkpoint import read_best
from verl_agent.runs.folder import RunFolder
from verl_agent.runs.identity import read_plan, read_settings
from verl_agent.trace.labels import LabelFile

READERS: dict[str, Callable[[Path], object]] = {
    "run.json": read_settings,
    ".plan": read_plan,
    "best/best.json": read_best,
    "config.json": make_portable,
    "tokenizer_config.json": make_portable,
    REPORT: read_report,
    "failures.json": read_failures,
    "play.json": read_play,
    "suite.json": _without_result,
    "labels.json": lambda folder: LabelFile.of(folder).read(),
    "lora_train_meta.json": lambda folder: _rank_and_alpha(folder / "huggingface"),
}
"""Reader of each file, which gets the folder of the run."""
TORN = {"empty": b"", "torn": b'{"version": 2, "trai', "not text": b"\xff\xfe\x00", "a list": b"[1]", "null": b"null"}


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
@pytest.mark.parametrize("name", READERS)
def test_a_torn_file_is_named_with_the_next_step(tmp_path, name, content):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(file))) as caught:
        READERS[name](tmp_path)
    assert re.search(r"(Restore|Delete|Write|Run|Choose|Repair|Update) \S+", str(caught.value).replace(str(file), ""))


@pytest.mark.parametrize("name", [".plan", "best/best.json", "suite.json", "play.json"])
def test_a_file_without_its_keys_is_named(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    with pytest.raises(ConfigError, match=rf"{re.escape(str(file))} has no '"):
        READERS[name](tmp_path)


@pytest.mark.parametrize("steps", ["null", "1e999", '"4"', "[4]"])
def test_a_plan_with_another_value_than_a_number_is_named(tmp_path, steps):
    (tmp_path / ".plan").write_text(f'{{"steps": {steps}}}')
    with pytest.raises(ConfigError, match=r"\.plan has steps=.*Delete it"):
        read_plan(tmp_path)


def test_an_empty_record_of_the_settings_stops_a_resumed_run_before_it_changes_anything(tmp_path):
    (tmp_path / "global_step_1").mkdir()
    finish_checkpoint(tmp_path / "global_step_1")
    (tmp_path / "run.json").touch()
    with pytest.raises(ConfigError, match=r"run\.json is empty.*Restore it, or delete the folder to start anew\."):
        RunFolder.at(tmp_path).claim({"trainer": {"lr": 1}}, ())
    assert (tmp_path / "run.json").read_bytes() == b""
