"""Play scripts on web tasks in a real browser."""

import asyncio

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.browser import farm
from env_adapters.webarena.evaluators import Ending, evaluate
from env_adapters.webarena.grammar import parse
from env_adapters.webarena.oracle import Oracle
from env_adapters.webarena.running import BrowserLimits


async def earned(item, source, script, urls):
    """What a script earns at a task of a source; every action of it can be done."""
    env = WebArena(tasks="miniwob")
    env.source = source
    oracle = Oracle(script, urls)
    try:
        observation = (await env.reset(item))[-1]["content"]
        while True:
            step = await env.step(oracle.act(observation))
            assert not step.info.get("invalid_action"), step.observation
            if step.terminated:
                return step.reward
            observation = step.observation
    finally:
        await env.close()


def play(item, source, script, urls):
    """The same, for tests without a loop."""
    return asyncio.run(earned(item, source, script, urls))


def judge_at_once(items, source):
    """What each of these tasks gives to an episode that ends at once with a wrong answer, or without one.

    They begin on the same pages, and one session that does nothing serves them all.
    """

    async def judge():
        env = WebArena(tasks="miniwob")
        env.source = source
        try:
            await env.reset(items[0])
            scores = []
            for item in items:
                answer = parse(min(item.data["wrong"], key=len)[0]).text
                ending = Ending(answer, env.session, item.data["intent"], env.world.base)
                work = evaluate(env.world.fill(item.data["eval"]), ending, None)
                scores.append(await farm(BrowserLimits()).run(work))
            return scores
        finally:
            await env.close()

    return asyncio.run(judge())
