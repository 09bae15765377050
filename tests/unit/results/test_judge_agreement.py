"""Test the agreement of a judge with labels against the definition of Cohen's kappa, and labels that are refused."""

import json
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.episodes import talk
from verl_agent.commands.cli import app
from verl_agent.errors import ConfigError
from verl_agent.results.judge_agreement import PersonLabel, cohens_kappa, compare_labels, kappa_interval, read_labels


def pairs(both: int, judge: int, person: int, neither: int) -> list[tuple[bool, bool]]:
    """Return the pairs of a table: both passed, the judge alone, the person alone, neither."""
    kinds = ((True, True), (True, False), (False, True), (False, False))
    return [pair for pair, count in zip(kinds, (both, judge, person, neither), strict=True) for _ in range(count)]


def test_kappa_is_that_of_the_definition():
    """Fleiss, Cohen and Everitt's quantities for every table up to 4; the first case is Wikipedia's example."""
    assert cohens_kappa(pairs(20, 5, 10, 15)) == pytest.approx(0.4)
    assert cohens_kappa(pairs(45, 15, 25, 15)) == pytest.approx(0.1304, abs=1e-4)
    for a, b, c, d in product(range(5), repeat=4):
        n = a + b + c + d
        if n and (chance := ((a + b) * (a + c) + (c + d) * (b + d)) / n**2) < 1:
            assert cohens_kappa(pairs(a, b, c, d)) == pytest.approx(((a + d) / n - chance) / (1 - chance))
    assert cohens_kappa(pairs(7, 0, 0, 0)) is None


def test_the_interval_covers_the_kappa_of_the_distribution():
    """60 samples of 60 labels from a distribution with kappa 0.6: 95 % of the intervals should hold it."""
    from random import Random

    table, luck, held = pairs(40, 10, 10, 40), Random(3), 0
    for _ in range(60):
        found = kappa_interval({number: [pair] for number, pair in enumerate(luck.choices(table, k=60))}, seed=1)
        assert found is not None and found.low <= found.mean <= found.high
        held += found.low <= 0.6 <= found.high
    assert held >= 53  # 57 of 60 expected; fewer than 53 have a probability of 0.01
    agreed = kappa_interval({number: [pair] for number, pair in enumerate(pairs(8, 0, 0, 8))})
    assert agreed is not None and agreed.mean == agreed.high == 1.0 and 0.5 < agreed.low < 1.0


def write_run(path: Path, scores: dict[str, float]) -> Path:
    records = []
    for task, score in scores.items():
        grade = {"criterion": "goal", "weight": 1.0, "score": 1 - score, "reason": "So."}
        verdict = {"turn": 1, "score": score, "reward": score, "grades": [grade], "replaced": None}
        records.append({**talk(task=task), "judgements": [{**verdict, "model": "m", "cost_usd": None}]})
    path.write_text("".join(json.dumps(record) + "\n" for record in [*records, talk(task="unjudged")]))
    return path


def test_a_label_without_a_step_is_compared_with_the_highest_step_whatever_its_file_is_called(tmp_path):
    for name, step, score in (("a", 100, 1.0), ("b", 0, 0.0)):
        file = write_run(tmp_path / f"{name}.jsonl", {"1": score})
        records = [json.loads(line) | {"step": step} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    (found,), _ = compare_labels(tmp_path, [PersonLabel("1", True)])
    assert (found.judge_passed, found.agreement.mean) == (1, 1.0)


def test_the_command_reports_each_criterion_and_the_labels_without_a_judgement(tmp_path):
    run = write_run(tmp_path / "run.jsonl", {"1": 0.9, "2": 0.2, "3": 0.6, "4": 0.0})
    labels = tmp_path / "labels.csv"
    rows = ["1,true,", "2,0,", "3,false,", "4,0.4,", "1,false,goal", "2,true,goal", "unjudged,true,", "9,true,"]
    labels.write_text("\n".join(["task,label,criterion", *rows]))
    result = CliRunner().invoke(app, ["judge-agreement", str(run), "--labels", str(labels)])
    assert result.exit_code == 0, result.output
    assert "score: 4 labels, passed: judge 2, people 1, agreement 0.750" in result.output
    assert "goal: 2 labels, passed: judge 1, people 1, agreement 1.000" in result.output
    assert "2 labels without a judgement, the first: task 'unjudged', sample 0, score" in result.output
    written = json.loads((tmp_path / "judge_agreement.json").read_text())
    assert [one["criterion"] for one in written["criteria"]] == ["score", "goal"] and written["unjudged"] == 2
    assert written["criteria"][0]["kappa"]["mean"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"label": True}, r"labels\.jsonl:1: label\.task is missing"),
        ({"task": "1", "label": "good"}, r"label\.label='good' is not allowed"),
        ({"task": "1", "label": 7}, r"label\.label=7 is not allowed"),
        ({"task": "1", "label": True, "criterion": "gaol"}, "Did you mean 'goal'"),
        ({"task": "9", "label": True}, "no label fits a judged episode"),
    ],
)
def test_a_label_that_cannot_be_meant_is_refused_by_name(tmp_path, line, message):
    run, labels = write_run(tmp_path / "run.jsonl", {"1": 0.9}), tmp_path / "labels.jsonl"
    labels.write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match=message):
        compare_labels(run, read_labels(labels))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", "task,label\n1,0.6\n2,0\n"),
        ("l.csv", "task;label\n1;0,6\n2;0\n"),
        ("l.tsv", "task\tlabel\r\n1\t0.6\r\n2\tfalse\r\n"),
        ("l.json", '[{"task": "1", "label": 0.6},\n {"task": "2", "label": false}]'),
        ("l.txt", '{"task": "1", "label": 0.6}\n{"task": "2", "label": false}\n'),
        ("l.csv", "task,label\n1,0.6\n2,0\n2,false\n1,0.60\n"),  # equal labels count once
        ("l.csv", "task,label,turn\n1,0.6,\n2,0,\n2,0,2\n"),  # turn 2 is the only judged one
    ],
)
def test_labels_are_read_from_tables_arrays_and_lines(tmp_path, name, content):
    run = write_run(tmp_path / "run.jsonl", {"1": 0.9, "2": 0.2})
    (tmp_path / name).write_text(content)
    (score,), unjudged = compare_labels(run, read_labels(tmp_path / name))
    assert (score.labels, score.judge_passed, score.person_passed, unjudged) == (2, 1, 1, [])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.csv", b"task,label\n1,0,6\n", r"l\.csv: line 2 has more cells than the header\. Quote cells with ','"),
        (
            "l.csv",
            b"1,true\n",
            r"l\.csv: the first line '1,true' is no header.*the header task,label",
        ),
        ("l.csv", b"Task,Label\n1,true\n", "is no header with task and label"),
        ("l.csv", b"", "is no header"),
        ("l.txt", b"task\tlabel\n1\ttrue\n", r"l\.txt:1: not JSON.*a \.csv or \.tsv file"),
        ("l.json", b'[{"task": "1", "label"', r"l\.json: .*a JSON array"),
        ("l.json", b'{"1": true}\n', r"l\.json:1: .*Allowed: JSON lines"),
        ("l.csv", "task,label\n1,0".encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        ("l.csv", "task,label\nMöbel,0".encode("latin-1"), "iconv -f LATIN1 -t UTF-8"),
        ("l.csv", b"task,label\n1,0\n1,1\n", "task '1', sample 0, score has the labels 0 and 1. Keep one"),
        ("l.csv", b"task,label,step\n1,0.2,\n1,0.3,0\n", "has the labels 0.2 and 0.3"),
    ],
)
def test_a_file_of_labels_that_cannot_be_meant_is_refused_with_the_remedy(tmp_path, name, content, message):
    run = write_run(tmp_path / "run.jsonl", {"1": 0.9})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        compare_labels(run, read_labels(tmp_path / name))


def test_a_run_without_judgements_is_refused(tmp_path):
    (tmp_path / "run.jsonl").write_text(json.dumps(talk()) + "\n")
    with pytest.raises(ConfigError, match="no episode with a judgement"):
        compare_labels(tmp_path / "run.jsonl", [])


def test_a_folder_of_several_evaluations_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "play.json").write_text("{}")
        write_run(tmp_path / name / "episodes.jsonl", {"1": 0.9})
    with pytest.raises(ConfigError, match=r"has 2 evaluations or runs, such as .*/a. Name one of them."):
        compare_labels(tmp_path, [])
