"""vLLM alone, answering the requests of a recorded step, to measure what the rollout adds to it."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from tests import ROOT
from verl_agent.platform.worker_environment import SPIN_ROUNDS

Request = tuple[list[int], int]
"""Tokens that the engine reads, and the number that it writes."""


def requests(tokens: Sequence[Sequence[int]], masks: Sequence[Sequence[int]]) -> list[list[Request]]:
    """Return the requests of each row in order.

    Args:
        masks: 1 for each token that the policy wrote.
    """
    found = []
    for ids, mask in zip(tokens, masks, strict=True):
        starts = [at for at in range(1, len(mask)) if mask[at] and not mask[at - 1]]
        ends = [next((at for at in range(start, len(mask)) if not mask[at]), len(mask)) for start in starts]
        found.append([(list(ids[:start]), end - start) for start, end in zip(starts, ends, strict=True)])
    return found


def bare_seconds(folder: Path, rows: Sequence[Sequence[Request]], dtype: torch.dtype) -> float:
    """Return the seconds in which vLLM alone answers the requests of a step: all rows at once, each turn by turn.

    Its settings are those of `verl_agent/config/cpu.yaml`.
    """
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_ROUNDS))
    from vllm import LLM, SamplingParams

    rollout = OmegaConf.load(ROOT / "verl_agent/config/cpu.yaml").actor_rollout_ref.rollout
    engine: Any = LLM(
        str(folder),
        dtype=str(dtype).removeprefix("torch."),
        max_model_len=max(len(read) + length for row in rows for read, length in row) + 1,
        max_num_seqs=len(rows),
        enable_prefix_caching=True,
        enforce_eager=rollout.enforce_eager,
        block_size=rollout.engine_kwargs.vllm.block_size,
    ).llm_engine

    def ask(row: int, turn: int) -> None:
        read, length = rows[row][turn]
        params = SamplingParams(max_tokens=length, min_tokens=length, ignore_eos=True, logprobs=0)
        engine.add_request(f"{row}-{turn}", {"prompt_token_ids": read}, params)

    seconds = 0.0
    for _ in range(2):  # the first one compiles
        began = time.perf_counter()
        engine.reset_prefix_cache()
        for row in range(len(rows)):
            if rows[row]:
                ask(row, 0)
        while engine.has_unfinished_requests():
            for output in engine.step():
                row, turn = map(int, output.request_id.split("-")[:2])
                if output.finished and turn + 1 < len(rows[row]):
                    ask(row, turn + 1)
        seconds = time.perf_counter() - began
    return seconds
