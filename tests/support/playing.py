"""Play scripts on web tasks in a real browser."""

import asyncio

from env_adapters.web_sites.siteset import URLS
from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.browser.pool import browser_pool
from env_adapters.webarena.browser.process import BrowserLimits
from env_adapters.webarena.grading.evaluators import FinalState, evaluate
from env_adapters.webarena.tasks.oracle import ScriptOracle


def play(item, source, script=None):
    """Return the reward of a script, or of the task's own oracle; fail if an action is invalid."""
    return asyncio.run(play_async(item, source, script))


async def play_async(item, source, script=None):
    """Return the reward of a script, see `play`."""
    act = source.oracle(item) if script is None else ScriptOracle(script, URLS).act
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


def score_immediate_answers(items, source):
    """Return the score of each task if an episode ends at once with an empty answer.

    The tasks must start on the same pages and reach the same sites, because one session without actions serves all.
    """

    async def score():
        env = WebArena(tasks="miniwob")
        env.source = source
        try:
            await env.reset(items[0])
            scores = []
            for item in items:
                site_urls, changes = env.task.sites.urls_by_placeholder, env.task.sites.changes
                final = FinalState("", env.task.session, item.data["intent"], site_urls, changes=changes)
                work = evaluate(env.task.sites.fill_urls(item.data["eval"]), final, None)
                scores.append(await browser_pool(BrowserLimits()).run(work))
            return scores
        finally:
            await env.close()

    return asyncio.run(score())
