"""Tests of the measurement of reports: its copies of records, and growth. Speed is not tested."""

import json

import pytest

from tests.bench.reports import SAMPLES, growth, widen


@pytest.fixture
def played(tmp_path):
    folder = tmp_path / "played"
    folder.mkdir()
    records = [{"task": task, "sample": sample} for task in ("a", "b") for sample in range(SAMPLES)]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report = {"planned": 20, "played": 20, "planned_tasks": ["a", "b"], "config": {"evaluation": {"samples": SAMPLES}}}
    (folder / "evaluation.json").write_text(json.dumps(report))
    return folder


@pytest.mark.parametrize(("new_tasks", "tasks", "samples"), [(False, 2, 30), (True, 6, 10)])
def test_copies_are_further_samples_or_further_tasks_and_all_are_planned(played, tmp_path, new_tasks, tasks, samples):
    assert widen(played, tmp_path / "wide", 3, new_tasks) == 60
    lines = [json.loads(line) for line in (tmp_path / "wide" / "episodes.jsonl").read_text().splitlines()]
    report = json.loads((tmp_path / "wide" / "evaluation.json").read_text())
    assert len({(line["task"], line["sample"]) for line in lines}) == report["planned"] == report["played"] == 60
    assert {line["task"] for line in lines} == set(report["planned_tasks"]) and len(report["planned_tasks"]) == tasks
    assert report["config"]["evaluation"]["samples"] == samples == len({line["sample"] for line in lines})


@pytest.mark.parametrize("start_s", [0.0, 5.0])
def test_growth_leaves_out_the_start_of_the_command(start_s):
    counts = (1_000, 10_000, 100_000)
    assert growth(counts, [start_s + count / 1000 for count in counts]) == pytest.approx(1.0)
    assert growth(counts, [start_s + count**2 / 1e6 for count in counts]) > 9
