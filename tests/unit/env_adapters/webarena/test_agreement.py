"""Tests that the evaluators agree with WebArena's own code, whose verdicts on 28,524 cases are stored."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import pytest
from playwright.async_api import Error

from env_adapters.webarena.grading.evaluators import FinalState, evaluate
from tests.support.grading_cases import VERDICTS, all_cases, digest

AGREEMENT = 0.995
DIFFERENCES = {f"5. {mark} b" for mark in ("'", "`", "\u201e", "..", "...", "``", "'s", "'ll", ".)", ".'", '."', "?!")}
"""Answers in which only WebArena finds the number 5. It is right, but a bare mark begins no sentence of an agent."""
UPDATE = "The cases have changed. Run WebArena's code on them: make webarena-verdicts"


class CannedPage:
    """Page whose script has a known result, as in `tests/support/real_webarena.py`."""

    def __init__(self, case):
        self.case, self.url = case, case.get("url", "about:blank")

    async def evaluate(self, script):
        if self.case.get("fails"):
            raise Error("the script fails")
        return self.case["value"]

    async def content(self):
        return self.case["value"]

    def is_closed(self):
        return False


async def verdicts(cases):
    found = ""
    for case in cases:
        page = CannedPage(case)
        final = FinalState(case.get("answer", ""), SimpleNamespace(page=page, tab=page), "", {})
        found += str(int(await evaluate(case["eval"], final, None)))
    return found


@pytest.fixture(scope="module")
def compared():
    stored, cases = json.loads(VERDICTS.read_text(encoding="utf-8")), all_cases()
    assert stored["cases"] == digest(cases), UPDATE
    return list(zip(cases, asyncio.run(verdicts(cases)), stored["verdicts"], strict=True))


@pytest.mark.parametrize("kind", ["answer", "url", "page"])
def test_verdicts_agree_with_those_of_webarena(compared, kind):
    cases = [(ours, theirs) for case, ours, theirs in compared if case["kind"] == kind]
    agreed = sum(ours == theirs for ours, theirs in cases)
    assert len(cases) > 4000 and min(Counter(theirs for _, theirs in cases).values()) > 1000
    assert agreed / len(cases) >= AGREEMENT, f"{agreed} of {len(cases)}"


def test_only_the_listed_cases_differ(compared):
    differing = [case for case, ours, theirs in compared if ours != theirs]
    assert {case.get("answer") for case in differing} == DIFFERENCES and len(differing) == len(DIFFERENCES)
