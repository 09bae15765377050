"""vLLM alone, answering the requests of a recorded step, to measure what the rollout adds to it."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from tests import ROOT
from tests.bench.recorded_step import Request
from verl_agent.platform.worker_environment import THREADS, worker_environment

ENVIRONMENT = ("VLLM_CPU_NUM_OF_RESERVED_CPU", "MALLOC_ARENA_MAX")
"""Variables of a run's processes, besides the number of threads, that decide how the engine uses the machine."""
MOST_BATCHED_TOKENS = 8192
"""verl's default of `actor_rollout_ref.rollout.max_num_batched_tokens`."""


class Threads:
    """Part of vLLM's worker that counts the threads of its matrix products."""

    def count_threads(self) -> int:
        """Return the number of threads."""
        threads: int = torch.get_num_threads()
        return threads


def bare_seconds(
    folder: Path, rows: Sequence[Sequence[Request]], dtype: torch.dtype, threads: int
) -> tuple[float, int]:
    """Return the seconds in which vLLM alone answers the requests of a step, and its number of threads.

    All rows are asked at once, each turn by turn, and replies have the lengths of the run's. Executor, threads, dtype,
    blocks, cache of prefixes and sampling parameters are those of a run with `verl_agent/config/cpu.yaml`. In contrast
    to the run, requests have no seeds, and the engine returns whole replies instead of one token after another.
    """
    environment = worker_environment(folder)
    os.environ.update({name: environment[name] for name in ENVIRONMENT} | {THREADS: str(threads)})
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from verl_agent.platform.vllm_rollout import ONE_PROCESS, UNSEEN  # imports verl, which the engine does without

    rollout = OmegaConf.load(ROOT / "verl_agent/config/cpu.yaml").actor_rollout_ref.rollout
    engine: Any = LLM(
        str(folder),
        dtype=str(dtype).removeprefix("torch."),
        max_model_len=max(len(read) + length for row in rows for read, length in row) + 1,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=MOST_BATCHED_TOKENS,
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=True,
        enforce_eager=rollout.enforce_eager,
        distributed_executor_backend=ONE_PROCESS,
        worker_extension_cls=f"{__name__}.{Threads.__name__}",
        **rollout.engine_kwargs.vllm,
    ).llm_engine

    def ask(row: int, turn: int) -> None:
        read, length = rows[row][turn]
        kind = RequestOutputKind.FINAL_ONLY
        params = SamplingParams(max_tokens=length, ignore_eos=True, logprobs=0, output_kind=kind, **UNSEEN)
        engine.add_request(f"{row}-{turn}", {"prompt_token_ids": read}, params)

    seconds = 0.0
    try:
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
        return seconds, engine.collective_rpc("count_threads")[0]
    finally:
        engine.engine_core.shutdown()
