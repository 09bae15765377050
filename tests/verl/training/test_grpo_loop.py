"""The example with the whole method in one file learns."""

import asyncio

import torch

import verl_agent as va
from tests import ROOT
from tests.support.loading import load_script

EXAMPLE = ROOT / "examples" / "grpo_loop.py"


def test_the_loop_in_one_file_learns_under_a_growing_limit():
    loop = load_script(EXAMPLE)
    torch.manual_seed(0)
    env, policy = va.make_env("guess_number"), loop.TinyPolicy()
    before = asyncio.run(loop.success(env, policy, 5))
    asyncio.run(loop.train(env, policy, va.Horizon(max_turns=[3, 5], steps_per_stage=20), 40))
    assert asyncio.run(loop.success(env, policy, 5)) > before + 0.2  # 0.35 before and 0.76 or more after, four seeds
