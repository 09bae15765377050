"""Play scripts on web tasks in a real browser."""

import asyncio

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.browser.grammar import parse_action
from env_adapters.webarena.browser.pool import browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.grading.evaluators import FinalState, evaluate
from env_adapters.webarena.sites import URLS
from env_adapters.webarena.tasks.oracle import ScriptOracle


def play(item, source, script=None):
    """What a script, or the task's own oracle, earns at a task of a source; every action of it can be done."""
    act = source.oracle(item) if script is None else ScriptOracle(script, URLS).act

    async def episode():
        env = WebArena(tasks="miniwob")
        env.source = source
        try:
            observation = (await env.reset(item))[-1]["content"]
            while True:
                step = await env.step(act(observation))
                assert not step.info.get("invalid_action"), step.observation
                if step.terminated:
                    return step.reward
                observation = step.observation
        finally:
            await env.close()

    return asyncio.run(episode())


def judge_at_once(items, source):
    """What each of these tasks gives to an episode that ends at once with a wrong answer, or without one.

    They begin on the same pages and reach the same sites, and one session that does nothing serves them all.
    """

    async def judge():
        env = WebArena(tasks="miniwob")
        env.source = source
        try:
            await env.reset(items[0])
            scores = []
            for item in items:
                answer = parse_action(min(item.data["wrong"], key=len)[0]).text
                ending = FinalState(answer, env.session, item.data["intent"], env.world.urls_by_placeholder)
                work = evaluate(env.world.fill_urls(item.data["eval"]), ending, None)
                scores.append(await browser_pool(BrowserLimits()).run(work))
            return scores
        finally:
            await env.close()

    return asyncio.run(judge())
