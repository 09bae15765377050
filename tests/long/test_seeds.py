"""Tests that vLLM on a CPU gives the same replies for the same seeds: in any batch, continued, and with split prompts.

Each engine takes half a minute to start.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.models import write_model
from verl_agent.evaluation.settings import EngineSettings
from verl_agent.evaluation.vllm_engine import VllmEngine
from verl_agent.rollout.seeds import EpisodeSeed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = EngineSettings(device="cpu", dtype="float32", enforce_eager=True, max_num_seqs=16)
REQUESTS = [
    (EpisodeSeed(1, "train", "talk", task, step=3, sample=sample), turn, [*range(100, 120 + 7 * turn)])
    for task in "ab"
    for sample in range(4)
    for turn in range(2)
]
"""Fixed batch of requests: two tasks, four samples each, two turns with prompts of different lengths."""
TOKENS = 24


def replies(model: str, order: Sequence[int], at_once: int, given: int = 0) -> dict[int, list[int]]:
    """Return the tokens of each request from a fresh engine."""

    async def generate_all() -> dict[int, list[int]]:
        with VllmEngine(model, SETTINGS, context=256) as engine:

            async def part(index: int, reply: list[int], tokens: int) -> list[int]:
                seed, turn, prompt = REQUESTS[index]
                sampling = {"temperature": 1.0, "max_tokens": tokens, "seed": seed.at(turn)}
                output = await engine.generate(f"r{index}", prompt_ids=prompt + reply, sampling_params=sampling)
                return reply + output.token_ids

            async def one(index: int) -> list[int]:
                reply = await part(index, [], given or TOKENS)
                return await part(index, reply, TOKENS - given) if len(reply) == given else reply

            found: dict[int, list[int]] = {}
            for begin in range(0, len(order), at_once):
                group = order[begin : begin + at_once]
                found |= dict(zip(group, await asyncio.gather(*map(one, group)), strict=True))
            return found

    return asyncio.run(generate_all())


def test_another_engine_gives_the_same_replies_in_any_order(tmp_path):
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    model, order = str(write_model(tmp_path)), list(range(len(REQUESTS)))
    first = replies(model, order, at_once=len(order))
    assert len({tuple(ids) for ids in first.values()}) == len(REQUESTS), "samples of a group differ"
    assert replies(model, order[::-1], at_once=len(order)) == first
    assert replies(model, order, at_once=3) == first, "the batch in which a request runs changes no reply"
    assert replies(model, order, at_once=len(order), given=10) == first, "an interrupted reply continues"


def test_prompts_that_do_not_fit_into_one_step_give_the_same_replies(tmp_path):
    """The engine splits them, and discards what it sampled after the first part."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    prompts = [[*range(100 + shift, 340 + shift)] for shift in range(48)]
    assert sum(map(len, prompts)) > 8192, "vLLM's budget of a step"

    async def generate_all(at_once: int) -> list[list[int]]:
        settings = replace(SETTINGS, max_num_seqs=at_once)
        with VllmEngine(str(write_model(tmp_path)), settings, context=256) as engine:
            sampling = {"temperature": 1.0, "max_tokens": 4}
            requests = (
                engine.generate(f"r{seed}", prompt_ids=prompt, sampling_params={**sampling, "seed": seed})
                for seed, prompt in enumerate(prompts)
            )
            return [reply.token_ids for reply in await asyncio.gather(*requests)]

    assert asyncio.run(generate_all(64)) == asyncio.run(generate_all(8))
