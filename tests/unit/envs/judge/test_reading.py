"""Test the reading of verdicts that are wrapped, cut or wrong."""

import time

import pytest

from tests.support.judged import CRITERIA, verdict
from verl_agent.envs.judge.reading import read_grades
from verl_agent.envs.judge.settings import read_rubric

RUBRIC = read_rubric({"criteria": CRITERIA})


@pytest.mark.parametrize(
    "text",
    [
        verdict(7),
        f"```json\n{verdict(7)}\n```",
        f"The agent {{sort of}} solved it. My verdict: {verdict(7)} I hope that helps {{",
        f"<think>Is {{}} enough?</think>{verdict(7)}\n{verdict(7)}",
        '{"goal": 7, "care": {"score": 10.0}}',
    ],
)
def test_a_verdict_may_be_wrapped(text):
    assert [(one.criterion, one.score) for one in read_grades(text, RUBRIC)] == [("goal", 0.7), ("care", 1.0)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("I would say it is good.", "no JSON object"),
        (verdict(7)[:-20], "without its end"),
        ('{"goal": {"score": 7}}', "'care' has no number"),
        (verdict(7).replace("10", '"ten"'), "'care' has no number"),
        (verdict(7).replace("10", "true"), "'care' has no number"),
        (verdict(7).replace("10", "NaN"), "'care' has no number"),
        (verdict(7, 11), "the score 11 of 'care' is outside of 0 to 10"),
        (verdict(-1), "the score -1 of 'goal' is outside"),
        (f"{verdict(10)} is what the agent wants. {verdict(2)}", "several verdicts"),
        (f"{verdict(10)} or {verdict(2)} or {verdict(10)}", "several verdicts"),
        ('{"goal": 7, "care": 1, "goal": 2}', "the criterion 'goal' several times"),
        ('{"goal": {"score": 7, "score": 2}, "care": 1}', "'goal' has no number"),
        ("{" * 5000, "without its end"),
    ],
)
def test_a_verdict_that_cannot_be_used_has_a_named_problem(text, problem):
    with pytest.raises(ValueError, match=problem):
        read_grades(text, RUBRIC)


@pytest.mark.parametrize("text", ["{", '{"', '{"a":', '{"a":[', '{"a":{"b":1},'])
def test_a_long_reply_of_brackets_is_read_in_seconds(text):
    started = time.perf_counter()
    with pytest.raises(ValueError, match="without its end"):
        read_grades(text * 50_000, RUBRIC)
    assert time.perf_counter() - started < 20
    assert read_grades(text * 50_000 + verdict(7), RUBRIC) == read_grades(verdict(7), RUBRIC)
