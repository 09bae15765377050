"""WebArena's evaluators: checks of the answer, of the URL of the last page, and of the content of the sites.

They follow `evaluation_harness/evaluators.py` of github.com/web-arena-x/webarena. The score is the product of all
checks. A check that cannot be made raises an error and never counts as a wrong answer.
"""

import asyncio
import html
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

from playwright.async_api import Error, Page

from env_adapters.webarena.browser.tab import Tab
from env_adapters.webarena.grading import strict
from env_adapters.webarena.grading.answers import (
    BRIEF_ANSWER,
    NUMBER_VALUES,
    clean_answer,
    exact_match,
    fuzzy_match,
    is_brief,
    must_include,
    must_include_value,
)
from env_adapters.webarena.grading.helpers import LAST_URL, call_helper
from env_adapters.webarena.grading.strict import FinalState
from env_adapters.webarena.grading.urls import EXACT_URL, OR, url_match
from verl_agent.errors import EnvError

LATE_CONTENT_S = 3.0
"""Seconds after loading, or after the last action, at which a page is evaluated; WebArena sleeps this long."""


async def let_time_pass(page: Page, since: float) -> None:
    """Return when `LATE_CONTENT_S` have passed on a page, whose clock then stands still.

    The page's own clock is moved forward: Chromium runs the timers that are due, one after another, and stops the
    clock while a request is pending. This takes about 20 ms. A page with a request that never ends (for example, an
    event stream) is waited for in real time.

    Args:
        since: monotonic time in seconds at which the page was loaded or acted on.

    Raises:
        playwright.async_api.Error: the page was closed.
    """
    left = LATE_CONTENT_S - (time.monotonic() - since)
    if left <= 0 or not page.url.startswith("http"):
        return
    client = await page.context.new_cdp_session(page)
    passed = asyncio.Event()
    client.on("Emulation.virtualTimeBudgetExpired", lambda _: passed.set())
    await client.send(
        "Emulation.setVirtualTimePolicy", {"policy": "pauseIfNetworkFetchesPending", "budget": 1000 * left}
    )
    with suppress(TimeoutError):
        async with asyncio.timeout(left):
            await passed.wait()


Judge = Callable[[str, str, str], Awaitable[float]]
"""Scores from 0 to 1 how well an answer agrees with a reference: `judge(answer, reference, question)`."""
NOT_ACHIEVABLE = "N/A"
LOAD_TIMEOUT_S = 15.0
SCRIPT_TIMEOUT_S = 4.0


def reference_texts(references: Mapping[str, Any]) -> list[str]:
    """Return all texts of the references of an answer."""
    return [text for value in references.values() for text in ([value] if isinstance(value, str) else value)]


async def string_match(
    references: Mapping[str, Any], note: str, final: FinalState, judge: Judge | None, by_value: bool = False
) -> float:
    """Return the product of the scores of the answer by all references.

    Args:
        references: reference of each match: `exact_match`, `must_include`, `fuzzy_match`. The fuzzy reference N/A
            means that the task cannot be done. Then the answer must be N/A or, with a judge, agree with `note`.
        note: reason why the task cannot be done.
        by_value: read numbers of `must_include` as numbers; WebArena does not.
    """
    score, answer = 1.0, clean_answer(final.answer)
    for match, reference in references.items():
        if match == "exact_match":
            score *= exact_match(reference, answer)
        elif match == "must_include":
            for text in reference:
                as_word = len(reference) == 1
                score *= must_include_value(text, answer) if by_value else must_include(text, answer, as_word)
        elif reference == NOT_ACHIEVABLE:
            agreement = exact_match(reference, answer)
            if not agreement and judge is not None and answer.strip() and note:
                agreement = await judge(final.answer, f"It cannot be done: {note}", final.intent)
            score *= agreement
        else:
            texts = [reference] if isinstance(reference, str) else reference
            if judge is None:
                score *= fuzzy_match(texts, answer, known=" ".join([final.intent, *references.get("must_include", ())]))
            else:
                score *= prod([await judge(final.answer, text, final.intent) for text in texts])
    return score


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
        return await _select_content(target, session.page, final)
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
        await session.attach(tab)
        await tab.settle(lambda: session.network_proxy.traffic.busy, LATE_CONTENT_S)
        await let_time_pass(page, since=loaded)
        session.check()
        return await _select_content(target, page, final)
    except Error as error:
        raise EnvError(f"the evaluator cannot open {url}: {error.message.partition(chr(10))[0]}") from error
    finally:
        await page.close()


async def _select_content(target: Mapping[str, Any], page: Page, final: FinalState) -> str:
    locator = target["locator"].strip()
    if not locator:
        return str(await page.content())
    if locator.startswith("func:"):
        return await call_helper(locator, page, final.site_urls)
    for script in target.get("prep_actions", ()):
        if await _run_script(page, script) is None:
            break
    return await _run_script(page, locator) or ""


async def _run_script(page: Page, script: str) -> str | None:
    """Return the result of a task's script (a JavaScript expression) as a Python string, or None if it fails."""
    try:
        async with asyncio.timeout(SCRIPT_TIMEOUT_S):
            return str(await page.evaluate(f"() => {script}"))
    except TimeoutError as error:
        raise EnvError(f"a script of the evaluator does not end: {script[:200]}") from error
    except Error as error:
        if page.is_closed():
            raise EnvError("the page was closed while it was evaluated.") from error
        return None


async def evaluate(evaluation: Mapping[str, Any], final: FinalState, judge: Judge | None) -> float:
    """Return the score of an episode, from 0 to 1.

    Args:
        evaluation: field `eval` of a valid task, with the URLs of the sites filled in.

    Raises:
        EnvError: a check could not be made.
    """
    score = 1.0
    if not set(evaluation["eval_types"]) <= {"string_match", "single_answer"}:
        with suppress(Error):  # a page that has closed fails in its check
            await let_time_pass(final.session.page, since=final.acted_at)
    for kind in evaluation["eval_types"]:
        if kind in strict.KINDS:
            score *= await strict.strict_score(kind, evaluation, final)
        elif kind == "string_match":
            note, references = evaluation.get("string_note") or "", evaluation["reference_answers"]
            limited = evaluation.get("answer_rule") == BRIEF_ANSWER and NOT_ACHIEVABLE not in references.values()
            if limited and not is_brief(reference_texts(references), final.answer):
                return 0.0
            by_value = evaluation.get("number_rule") == NUMBER_VALUES
            score *= await string_match(references, note, final, judge, by_value)
        elif kind == "url_match":
            exact = evaluation.get("url_note") == EXACT_URL
            score *= url_match(evaluation["reference_url"], final.session.tab.url, exact)
        else:
            score *= await program_html(evaluation["program_html"], final)
        if not score:
            break
    return score
