"""Numbers in answers: WebArena's reading, and the reading by value that training uses."""

import asyncio
import re

import pytest

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.grading.answers import must_include_value
from env_adapters.webarena.grading.evaluators import FinalState, evaluate

RIGHT = ("{}", "{}.", "score: {}.", "The number is {}. the rest", "{}.00", "${}.00", "It is {}, as asked.", "**{}**")
WRONG = ("{}7", "7{}", "{},007", "7,{:0>3}", "{}.5", "{}/7", "7:{}", "7-{}")


@pytest.mark.parametrize(
    ("reference", "answer", "score"),
    [
        *(("0", text, 1) for text in ("score: 0.", "$0.00", "0 or 1", "[0]", "#0", "x=0;", "0%")),
        *(("0", text, 0) for text in ("0.5", "10", "v0.1", "0th", "a0", "1.0.2", "zero", "")),
        *(("16", text, 1) for text in ("16.", "16-inch", "16 km", "(16)", "12, 16", "16.0")),
        *(("16", text, 0) for text in ("160", "1,600", "-16", "16:30", "2016-16-01", "16/20", "1.16")),
        *(("1234", text, 1) for text in ("1,234", "1234.0", "$1,234.00")),
        *(("4.0km", text, 1) for text in ("4 km", "4000m", "4.0 kilometers")),
        *(("4.0km", text, 0) for text in ("14.0km", "4.0", "4 m")),
        *(("-79.939", text, 1) for text in ("(40.442, -79.939)", "40.442,-79.939")),
        ("79.939", "40.442,-79.939", 0),
        ("16x24", "the 16x24 frame", 1),
        ("Five Guys", "five guys, 117", 1),
    ],
)
def test_numbers_are_read_by_value(reference, answer, score):
    assert must_include_value(reference, answer) == score


def paid(evaluation, answer):
    final = FinalState(answer, None, "", {})
    return asyncio.run(evaluate(evaluation, final, None))


def test_counts_of_webarena_s_tasks():
    """The page names these counts."""
    texts, values = WebArena().tasks("all"), WebArena(access={"number_values": True}).tasks("all")
    counts = {}
    for text, value in zip(texts, values, strict=True):
        references = (text.data["eval"]["reference_answers"] or {}).get("must_include", ())
        if text.data["eval"]["eval_types"] != ["string_match"] or len(references) != 1:
            continue
        if not re.fullmatch(r"\d{1,3}", references[0]):
            continue
        row = counts.setdefault(min(len(references[0]), 2), [0] * 5)
        row[0] += 1
        for place, cases in ((1, RIGHT), (3, WRONG)):
            for case in cases:
                answer = case.format(references[0])
                row[place] += paid(text.data["eval"], answer) == 1
                row[place + 1] += paid(value.data["eval"], answer) == 1
    assert counts == {1: [31, 155, 248, 0, 0], 2: [15, 120, 120, 120, 0]}
