"""Tests that vLLM on a CPU gives the same replies for the same seeds, and does not split prompts.

Each engine takes half a minute to start.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.models import write_model
from verl_agent.evaluation.settings import EngineSettings
from verl_agent.evaluation.vllm_engine import MAX_BATCHED, Generation, VllmEngine
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


def replies(model: str, order: Sequence[int], at_once: int) -> dict[int, list[int]]:
    """Return the tokens of each request from a fresh engine, sent in groups of `at_once`."""

    async def generate_all() -> dict[int, list[int]]:
        with VllmEngine(model, SETTINGS, context=256) as engine:

            async def one(index: int) -> list[int]:
                seed, turn, prompt = REQUESTS[index]
                sampling = {"temperature": 1.0, "max_tokens": 24, "seed": seed.at(turn)}
                return (await engine.generate(f"r{index}", prompt_ids=prompt, sampling_params=sampling)).token_ids

            found: dict[int, list[int]] = {}
            for begin in range(0, len(order), at_once):
                part = order[begin : begin + at_once]
                found |= dict(zip(part, await asyncio.gather(*map(one, part)), strict=True))
            return found

    return asyncio.run(generate_all())


def test_another_engine_gives_the_same_replies_in_any_order(tmp_path):
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    model, order = str(write_model(tmp_path)), list(range(len(REQUESTS)))
    first = replies(model, order, at_once=len(order))
    assert len({tuple(ids) for ids in first.values()}) == len(REQUESTS), "samples of a group differ"
    assert replies(model, order[::-1], at_once=len(order)) == first
    assert replies(model, order, at_once=3) == first, "the batch in which a request runs changes no reply"


def test_prompts_that_do_not_fit_into_one_step_are_all_answered(tmp_path):
    """A split prompt of a request with a seed would end the engine."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    settings = replace(SETTINGS, max_num_seqs=64)
    prompts = [[*range(100 + shift, 340 + shift)] for shift in range(48)]
    assert sum(map(len, prompts)) > MAX_BATCHED

    async def generate_all() -> list[Generation]:
        with VllmEngine(str(write_model(tmp_path)), settings, context=256) as engine:
            sampling = {"temperature": 1.0, "max_tokens": 4}
            return await asyncio.gather(
                *(
                    engine.generate(f"r{seed}", prompt_ids=prompt, sampling_params={**sampling, "seed": seed})
                    for seed, prompt in enumerate(prompts)
                )
            )

    assert all(reply.token_ids for reply in asyncio.run(generate_all()))
