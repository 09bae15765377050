"""WebArena's evaluators: checks of the answer, of the URL of the last page, and of the content of the sites.

They follow `evaluation_harness/evaluators.py` of github.com/web-arena-x/webarena. The score is the product of all
checks. A check that cannot be made raises an error and never counts as a wrong answer.
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
from env_adapters.webarena.grading.helpers import LAST_URL, call_helper
from verl_agent.errors import EnvError

Judge = Callable[[str, str, str], Awaitable[float]]
"""Scores from 0 to 1 how well an answer agrees with a reference: `judge(answer, reference, question)`."""
WORDS = re.compile(r"\w+(?:[.,]\w+)*|[^\w\s]")
NOT_ACHIEVABLE = "N/A"
OR = " |OR| "
EDGE_CHARACTERS = string.punctuation
"""Characters stripped from the ends of a word: `(4)`, `4.` and `$4` contain the word 4, but `4/5` and `2-3` do not."""
LOAD_TIMEOUT_S = 15.0
LATE_CONTENT_S = 3.0
"""Seconds after loading in which content may still appear; WebArena sleeps this long."""
POLL_S = 0.1
FUZZY_SHARE = 0.8
"""Smallest share of the reference's words in an answer that matches without a judge."""
STOP_WORDS = frozenset(
    (
        *("a", "an", "and", "are", "at", "be", "by", "for", "from", "in", "is"),
        *("it", "of", "on", "or", "that", "the", "this", "to", "was", "were", "with"),
    )
)


@dataclass(frozen=True, slots=True)
class FinalState:
    """Final state of an episode, which the evaluators score.

    Attributes:
        answer: answer of the agent, "" if it gave none.
        session: browser session as the agent left it.
        intent: objective of the task.
        site_urls: URL of each site by its placeholder, for checks on other pages than the last one.
    """

    answer: str
    session: BrowserSession
    intent: str
    site_urls: Mapping[str, str]


def normalize(text: str) -> str:
    """Return a text in lower case, without outer white space and one pair of quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def exact_match(reference: str, answer: str) -> float:
    """Return 1.0 if both texts are equal after `normalize`, else 0.0."""
    return float(normalize(answer) == normalize(reference))


def must_include(reference: str, answer: str, as_word: bool = False) -> float:
    """Return 1.0 if the answer contains the reference, else 0.0.

    Args:
        reference: text to find.
        answer: text to search.
        as_word: a reference of a single character must be a word of its own.

    Example:
        >>> must_include("1", "There are 10, or 1/2.", as_word=True)
        0.0
    """
    expected, given = normalize(reference), normalize(answer)
    if as_word and len(expected) == 1:
        return float(expected in [word.strip(EDGE_CHARACTERS) for word in given.split()])
    return float(expected in given)


def fuzzy_match(reference: str, answer: str) -> float:
    """Return 1.0 if the answer has every number and at least four fifths of the words of the reference, else 0.0.

    This rule is used without a judge. Case, order, punctuation, a plural s and stop words do not matter.

    Example:
        >>> fuzzy_match("7 hours 30 min", "It takes 7 hours and 30 minutes")
        0.0
        >>> fuzzy_match("the Carnegie Library, Oakland", "oakland: Carnegie library")
        1.0
    """
    expected, given = _words(reference), _words(answer)
    if not expected:
        return exact_match(reference, answer)
    if any(word not in given for word in expected if word[0].isdigit()):
        return 0.0
    return float(len(expected & given) >= FUZZY_SHARE * len(expected))


async def string_match(references: Mapping[str, Any], note: str, final: FinalState, judge: Judge | None) -> float:
    """Return the product of the scores of the answer by all references.

    Args:
        references: reference of each match: `exact_match`, `must_include`, `fuzzy_match`. The fuzzy reference N/A
            means that the task cannot be done. Then the answer must be N/A or, with a judge, agree with `note`.
        note: reason why the task cannot be done.
        final: final state of the episode.
        judge: judge for `fuzzy_match`, or None.
    """
    score = 1.0
    for match, reference in references.items():
        if match == "exact_match":
            score *= exact_match(reference, final.answer)
        elif match == "must_include":
            for text in reference:
                score *= must_include(text, final.answer, as_word=len(reference) == 1)
        elif reference == NOT_ACHIEVABLE:
            agreement = exact_match(reference, final.answer)
            if not agreement and judge is not None and final.answer.strip() and note:
                agreement = await judge(final.answer, f"It cannot be done: {note}", final.intent)
            score *= agreement
        else:
            for text in [reference] if isinstance(reference, str) else reference:
                score *= await judge(final.answer, text, final.intent) if judge else fuzzy_match(text, final.answer)
    return score


def url_match(reference: str, url: str) -> float:
    """Return 1.0 if `url` matches one of the references, else 0.0.

    It must contain host and path of a reference, and every parameter of the references' queries with an allowed value.

    Args:
        reference: URLs joined by ` |OR| `.
        url: URL of the agent's last page.

    Example:
        >>> url_match("http://shop.test/list?size=m", "http://shop.test/list?page=2&size=m")
        1.0
    """
    given = urlsplit(url.rstrip("/"))
    query = parse_qs(given.query)
    references = [urlsplit(text.rstrip("/")) for text in reference.split(OR)]
    if not any(expected.netloc + expected.path in given.netloc + given.path for expected in references):
        return 0.0
    allowed: dict[str, set[str]] = {}
    for expected in references:
        for key, values in parse_qs(expected.query).items():
            allowed.setdefault(key, set()).update(values)
    return float(all(values & set(query.get(key, ())) for key, values in allowed.items()))


async def program_html(targets: Sequence[Mapping[str, Any]], final: FinalState) -> float:
    """Return 1.0 if every target has its required content, else 0.0.

    The content is a page, the result of a script on a page, or the result of a helper.
    """
    for target in targets:
        content = await _target_content(target, final)
        if content is None:
            return 0.0
        text = html.unescape(content)
        required = target["required_contents"]
        if "exact_match" in required:
            passed = exact_match(required["exact_match"], text)
        else:
            alternatives = [reference.split(OR) for reference in required["must_include"]]
            passed = float(all(any(must_include(reference, text) for reference in group) for group in alternatives))
        if not passed:
            return 0.0
    return 1.0


async def _target_content(target: Mapping[str, Any], final: FinalState) -> str | None:
    """Return the content of a target, or None if it needs the agent's last page and that is not a page of a site."""
    session, url = final.session, target["url"]
    uses_last_page = LAST_URL in url
    if url.startswith("func:"):
        url = await call_helper(url, final.session.page, final.site_urls)
    if url == "last":
        return await _select_content(target, session.page, final, deadline=0.0)
    if not session.network_proxy.allows(url):
        session.check()
        if uses_last_page:
            return None
        raise EnvError(f"the page {url} that the evaluator asks for is outside the sites of this task.")
    page = await session.new_evaluator_page()
    try:
        response = await page.goto(url, wait_until="load", timeout=LOAD_TIMEOUT_S * 1000)
        if response is not None and response.status >= 500:
            raise EnvError(f"the page {url} that the evaluator asks for answers {response.status}.")
        loaded = time.monotonic()
        tab = Tab(page)
        await tab.attach()
        await tab.settle(lambda: session.network_proxy.traffic.busy, LOAD_TIMEOUT_S)
        session.check()
        return await _select_content(target, page, final, deadline=loaded + LATE_CONTENT_S)
    except Error as error:
        raise EnvError(f"the evaluator cannot open {url}: {error.message.partition(chr(10))[0]}") from error
    finally:
        await page.close()


async def _select_content(target: Mapping[str, Any], page: Page, final: FinalState, deadline: float) -> str:
    locator = target["locator"].strip()
    if not locator:
        return str(await page.content())
    if locator.startswith("func:"):
        return await call_helper(locator, page, final.site_urls)
    for script in target.get("prep_actions", ()):
        await _run_script(page, script, deadline)
    return await _run_script(page, locator, deadline)


async def _run_script(page: Page, script: str, deadline: float) -> str:
    """Return the result of a task's script as a Python string, or "" if the script fails until the deadline.

    Args:
        page: page on which the script runs.
        script: JavaScript expression.
        deadline: monotonic time in seconds until which the script is retried, because its element may still appear.
    """
    while True:
        try:
            return str(await page.evaluate(f"() => {script}"))
        except Error as error:
            if page.is_closed():
                raise EnvError("the page was closed while it was evaluated.") from error
            if time.monotonic() > deadline:
                return ""
        await asyncio.sleep(POLL_S)


def _words(text: str) -> set[str]:
    words = {word for word in WORDS.findall(text.lower()) if word[0].isalnum()} - STOP_WORDS
    return {word[:-1] if len(word) > 3 and word.endswith("s") and not word[0].isdigit() else word for word in words}


async def evaluate(evaluation: Mapping[str, Any], final: FinalState, judge: Judge | None) -> float:
    """Return the score of an episode, from 0 to 1.

    Args:
        evaluation: field `eval` of a valid task, with the URLs of the sites filled in.
        final: final state of the episode.
        judge: judge for `fuzzy_match`; None for the rule of `fuzzy_match`.

    Raises:
        EnvError: a check could not be made.
    """
    score = 1.0
    for kind in evaluation["eval_types"]:
        if kind == "string_match":
            note = evaluation.get("string_note") or ""
            score *= await string_match(evaluation["reference_answers"], note, final, judge)
        elif kind == "url_match":
            score *= url_match(evaluation["reference_url"], final.session.page.url)
        else:
            score *= await program_html(evaluation["program_html"], final)
        if not score:
            break
    return score
