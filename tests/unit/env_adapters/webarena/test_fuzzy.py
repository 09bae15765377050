"""Tests of the rule that compares answers with references without a judge."""

import asyncio

import pytest

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.grading.answers import fuzzy_match
from env_adapters.webarena.grading.evaluators import FinalState, string_match

MOST_EQUAL_REFERENCES = 4
"""Tasks with the reference `No, it is open`."""


@pytest.mark.parametrize(
    ("reference", "answer", "score"),
    [
        ("Sarah Miller", "miller, sarah", 1.0),
        ("557m", "about 557m", 1.0),
        ("557m", "about 55m", 0.0),
        ("It takes 2 hours", "2 hours", 0.0),
        ("Harbison Chapel", "", 0.0),
        ("7 min", "7min", 1.0),
        ("7 min", "It takes 7 minutes.", 1.0),
        ("7 min", "7 hours", 0.0),
        ("7 min", "17 min", 0.0),
        ("1h 35min", "1 hour and 35 minutes", 1.0),
        ("1h 35min", "95 minutes", 1.0),
        ("2h 58min", "2h 58m", 1.0),
        ("2h 58min", "It takes 2h58m.", 1.0),
        ("1h 35min", "1 h 35, by car", 1.0),
        ("1h 35min", "1h, 35 m", 0.0),
        ("1h 35min", "35 min, 1 hour", 0.0),
        ("walking: 1h 44min.", "walking takes 1h44min", 1.0),
        ("Time: 3h 30min", "3.5 hours", 1.0),
        ("375m", "0.375 kilometers", 1.0),
        ("2.4km", "2,400 m", 1.0),
        ("2.4km", "2.4 miles", 0.0),
        ("30 min", "30", 0.0),
    ],
)
def test_fuzzy_match(reference, answer, score):
    assert fuzzy_match([reference], answer) == score


@pytest.mark.parametrize(
    ("references", "answer", "score"),
    [
        (["7 min"], "It takes about 7 minutes (0.5 km) by car from REI to CMU.", 1.0),
        (["7 min"], "6 min or 7 min", 0.0),
        (["7 min"], ", ".join(f"{minutes} min" for minutes in range(1, 201)), 0.0),
        (["7 min"], "1 2 3 4 5 6 7 min", 0.0),
        (["driving: 13min", "walking: 1h 35min"], "Driving takes 13 min, walking takes 1 h 35 min.", 1.0),
        (["driving: 13min", "walking: 1h 35min"], "driving: 13min", 0.0),
        (["driving: 13min", "walking: 1h 35min"], "driving 12 to 13 min, walking 95 min", 0.0),
        (["7 min"], "5, 6 or 7 min", 0.0),
        (["May 23 2023"], "May 23, 2023 at 10:04 AM", 1.0),
        (["May 23 2023"], "May 21, 22, 23, 24 or 25, 2023", 0.0),
        (["No, it is open"], "yes, no, open", 0.0),
        (["Not true to size"], "Customers say that it does not run true to size.", 1.0),
        (["Not true to size"], "not true to size, warm, comfortable, soft, cheap, light, stylish", 0.0),
    ],
)
def test_list_of_guesses_is_no_fuzzy_match(references, answer, score):
    assert fuzzy_match(references, answer, known="How long is the minimum travel time by car from REI to CMU?") == score


def test_references_of_several_tasks_in_one_answer_earn_nothing_without_a_judge():
    every = [
        item.data for item in WebArena().tasks("all") if "fuzzy_match" in (item.data["eval"]["reference_answers"] or {})
    ]
    listed = [task for task in every if isinstance(task["eval"]["reference_answers"]["fuzzy_match"], list)]
    texts = ["; ".join(task["eval"]["reference_answers"]["fuzzy_match"]) for task in listed]
    constants = ["; ".join(texts), *("; ".join(texts[start : start + 8]) for start in range(0, len(texts), 16))]
    for task, text in zip(listed, texts, strict=True):
        references = task["eval"]["reference_answers"]
        right = "; ".join([*references.get("must_include", ()), text])
        assert fuzzy_score(task, right) == 1.0, task["task_id"]
        assert fuzzy_score(task, constants[0]) == 0.0, task["task_id"]
    wins = [sum(fuzzy_score(task, constant) for task in listed) for constant in constants]
    assert max(wins) <= MOST_EQUAL_REFERENCES


def fuzzy_score(task, answer):
    final = FinalState(answer, None, task["intent"], {})
    return asyncio.run(string_match(task["eval"]["reference_answers"], "", final, None))
