"""WebArena's evaluators: is the answer right, is the page the right one, does the site hold what was asked for?

After `evaluation_harness/evaluators.py` of github.com/web-arena-x/webarena: the score is the product of all checks. A
check that cannot be made raises; it never counts as a wrong answer.
"""

import asyncio
import html
import re
import string
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Error, Page

from env_adapters.webarena.browser.session import BrowserSession
from env_adapters.webarena.browser.tab import Tab
from env_adapters.webarena.grading.helpers import LAST_URL, call
from verl_agent.errors import EnvError

Judge = Callable[[str, str, str], Awaitable[float]]
"""Says from 0 to 1 whether an answer means the same as a reference: `judge(answer, reference, question)`."""
WORDS = re.compile(r"\w+(?:[.,]\w+)*|[^\w\s]")
NOT_ACHIEVABLE = "N/A"
OR = " |OR| "
EDGES = string.punctuation
"""What does not belong to a word at its edges: `(4)`, `4.` and `$4` hold the word 4, and `4/5` and `2-3` do not."""
LOAD_S = 15.0
LATE_S = 3.0
"""Seconds after loading in which what an evaluator looks for may appear, as long as WebArena sleeps."""
POLL_S = 0.1
FUZZY_SHARE = 0.8
"""Share of a reference's words that an answer must hold to mean the same by the rule without a judge."""
STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "at",
        "be",
        "by",
        "for",
        "from",
        "in",
        "is",
        "it",
        "of",
        "on",
        "or",
        "that",
        "the",
        "this",
        "to",
        "was",
        "were",
        "with",
    ]
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended.

    Attributes:
        answer: what the agent said, "" if nothing.
        session: its browser, as the agent left it.
        intent: the task.
        base: URL of each site by its placeholder, for what is checked elsewhere than on the last page.
    """

    answer: str
    session: BrowserSession
    intent: str
    base: Mapping[str, str]


def clean(text: str) -> str:
    """Without outer spaces, one pair of quotes, and capitals."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def exact_match(reference: str, answer: str) -> float:
    """Whether both are the same text."""
    return float(clean(answer) == clean(reference))


def must_include(reference: str, answer: str, as_word: bool = False) -> float:
    """Whether the answer holds the reference; as a word of its own if that is a single character and `as_word`.

    Example:
        >>> must_include("1", "There are 10, or 1/2.", as_word=True)
        0.0
    """
    wanted, said = clean(reference), clean(answer)
    if as_word and len(wanted) == 1:
        return float(wanted in [word.strip(EDGES) for word in said.split()])
    return float(wanted in said)


def fuzzy_match(reference: str, answer: str) -> float:
    """The rule in place of a judge: numbers and at least four fifths of the words of the reference are in the answer.

    Case, order, punctuation, plurals in s and small words such as `the` do not matter; a number must be there as it is.

    Example:
        >>> fuzzy_match("7 hours 30 min", "It takes 7 hours and 30 minutes")
        0.0
        >>> fuzzy_match("the Carnegie Library, Oakland", "oakland: Carnegie library")
        1.0
    """
    wanted, said = _words(reference), _words(answer)
    if not wanted:
        return exact_match(reference, answer)
    if any(word not in said for word in wanted if word[0].isdigit()):
        return 0.0
    return float(len(wanted & said) >= FUZZY_SHARE * len(wanted))


async def string_match(references: Mapping[str, Any], note: str, ending: Ending, judge: Judge | None) -> float:
    """Whether the answer is right by all of `references`: `exact_match`, `must_include`, `fuzzy_match`.

    For a task that cannot be done the reference is N/A: the answer must be N/A, or, with a judge, the reason `note`.
    """
    score = 1.0
    for how, wanted in references.items():
        if how == "exact_match":
            score *= exact_match(wanted, ending.answer)
        elif how == "must_include":
            for part in wanted:
                score *= must_include(part, ending.answer, as_word=len(wanted) == 1)
        elif wanted == NOT_ACHIEVABLE:
            right = exact_match(wanted, ending.answer)
            if not right and judge is not None and ending.answer.strip() and note:
                right = await judge(ending.answer, f"It cannot be done: {note}", ending.intent)
            score *= right
        else:
            for part in [wanted] if isinstance(wanted, str) else wanted:
                score *= await judge(ending.answer, part, ending.intent) if judge else fuzzy_match(part, ending.answer)
    return score


def url_match(reference: str, url: str) -> float:
    """Whether `url` holds host and path of one of the references, joined by ` |OR| `, and what their queries ask for.

    Example:
        >>> url_match("http://shop.test/list?size=m", "http://shop.test/list?page=2&size=m")
        1.0
    """
    said = urlsplit(url.rstrip("/"))
    query = parse_qs(said.query)
    wanted = [urlsplit(one.rstrip("/")) for one in reference.split(OR)]
    if not any(one.netloc + one.path in said.netloc + said.path for one in wanted):
        return 0.0
    allowed: dict[str, set[str]] = {}
    for one in wanted:
        for key, values in parse_qs(one.query).items():
            allowed.setdefault(key, set()).update(values)
    return float(all(values & set(query.get(key, ())) for key, values in allowed.items()))


async def program_html(targets: Sequence[Mapping[str, Any]], ending: Ending) -> float:
    """Whether every target holds what it must: a page, what a script selects on it, or what a helper finds out."""
    for target in targets:
        selected = await _selected(target, ending)
        if selected is None:
            return 0.0
        text = html.unescape(selected)
        required = target["required_contents"]
        if "exact_match" in required:
            good = exact_match(required["exact_match"], text)
        else:
            good = float(
                all(any(must_include(one, text) for one in part.split(OR)) for part in required["must_include"])
            )
        if not good:
            return 0.0
    return 1.0


async def _selected(target: Mapping[str, Any], ending: Ending) -> str | None:
    """What a target selects; None where it is about the agent's last page, and that is none of a site."""
    session, url = ending.session, target["url"]
    own = LAST_URL in url
    if url.startswith("func:"):
        url = await call(url, ending.session.page, ending.base)
    if url == "last":
        return await _select(target, session.page, ending, until=0.0)
    if not session.fence.allows(url):
        session.check()
        if own:
            return None
        raise EnvError(f"the page {url} that the evaluator asks for is outside the sites of this task.")
    page = await session.extra_page()
    try:
        answer = await page.goto(url, wait_until="load", timeout=LOAD_S * 1000)
        if answer is not None and answer.status >= 500:
            raise EnvError(f"the page {url} that the evaluator asks for answers {answer.status}.")
        loaded = time.monotonic()
        tab = Tab(page)
        await tab.attach()
        await tab.settle(lambda: session.fence.traffic.busy, LOAD_S)
        session.check()
        return await _select(target, page, ending, until=loaded + LATE_S)
    except Error as error:
        raise EnvError(f"the evaluator cannot open {url}: {error.message.partition(chr(10))[0]}") from error
    finally:
        await page.close()


async def _select(target: Mapping[str, Any], page: Page, ending: Ending, until: float) -> str:
    locator = target["locator"].strip()
    if not locator:
        return str(await page.content())
    if locator.startswith("func:"):
        return await call(locator, page, ending.base)
    for script in target.get("prep_actions", ()):
        await _evaluate(page, script, until)
    return await _evaluate(page, locator, until)


async def _evaluate(page: Page, script: str, until: float) -> str:
    """What a script of the task says on a page, as Python writes it; a page without what it looks for says nothing.

    Args:
        page: where it runs.
        script: an expression.
        until: monotonic second up to which what it looks for may still appear.
    """
    while True:
        try:
            return str(await page.evaluate(f"() => {script}"))
        except Error as error:
            if page.is_closed():
                raise EnvError("the page was closed while it was evaluated.") from error
            if time.monotonic() > until:
                return ""
        await asyncio.sleep(POLL_S)


def _words(text: str) -> set[str]:
    words = {word for word in WORDS.findall(text.lower()) if word[0].isalnum()} - STOP_WORDS
    return {word[:-1] if len(word) > 3 and word.endswith("s") and not word[0].isdigit() else word for word in words}


async def evaluate(evaluation: Mapping[str, Any], ending: Ending, judge: Judge | None) -> float:
    """The score of an ending, 0 to 1.

    Args:
        evaluation: the field `eval` of a task, checked by `tasks.check`, with the URLs of the sites filled in.
        ending: what to judge.
        judge: for `fuzzy_match`; None for the rule that needs none.
    """
    score = 1.0
    for kind in evaluation["eval_types"]:
        if kind == "string_match":
            note = evaluation.get("string_note") or ""
            score *= await string_match(evaluation["reference_answers"], note, ending, judge)
        elif kind == "url_match":
            score *= url_match(evaluation["reference_url"], ending.session.page.url)
        else:
            score *= await program_html(evaluation["program_html"], ending)
        if not score:
            break
    return score
