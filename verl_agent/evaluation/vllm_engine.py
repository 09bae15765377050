"""vLLM in a process of its own behind the one call that a policy makes; serves evaluation, trains nothing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from verl_agent.errors import ConfigError
from verl_agent.evaluation.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Generation:
    """One reply in tokens.

    Attributes:
        token_ids: what the model wrote, with its end-of-turn token.
        log_probs: one for each of them, if they were asked for.
        extra_fields: empty; part of what `EnginePolicy` reads.
        stop_reason: why vLLM stopped.
    """

    token_ids: list[int]
    log_probs: list[float] | None
    extra_fields: dict[str, Any]
    stop_reason: str | None


def request_options(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of vLLM's SamplingParams for one reply.

    Args:
        sampling_params: the same, but for `logprobs`, which is true or false.
    """
    return {**sampling_params, "logprobs": 0 if sampling_params.get("logprobs") else None}


class VllmEngine:
    """A `TokenEngine` on vLLM's asynchronous engine. Create it inside a running event loop, and close it.

    Args:
        model: a model folder or hub id.
        settings: section `engine`.
        context: tokens that an episode may have, prompt included.
        seed: of requests that bring none.

    Raises:
        ConfigError: vLLM is not installed.
    """

    def __init__(self, model: str, settings: EngineSettings, context: int, seed: int = 0) -> None:
        # The engine's process must not be forked from one that has threads and may have touched a GPU.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise ConfigError(f"evaluation needs vLLM, which does not import: {error}. Run `make setup`.") from error
        arguments = AsyncEngineArgs(
            model=model,
            dtype=settings.dtype,
            enforce_eager=settings.enforce_eager,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=context,
            tensor_parallel_size=settings.tensor_parallel_size,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            seed=seed,
            block_size=settings.block_size,
            disable_log_stats=True,
        )
        self._engine = AsyncLLM.from_engine_args(arguments)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generation:
        """Generate one reply.

        Args:
            request_id: of the episode.
            prompt_ids: everything said so far.
            sampling_params: see `request_options`.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            **request_options(sampling_params),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        outputs = self._engine.generate({"prompt_token_ids": prompt_ids}, parameters, f"{request_id}-{len(prompt_ids)}")
        completion = [output async for output in outputs][-1].outputs[0]
        ids = list(completion.token_ids)
        log_probs = None
        if completion.logprobs:
            log_probs = [by_id[token].logprob for token, by_id in zip(ids, completion.logprobs, strict=True)]
        return Generation(ids, log_probs, {}, completion.finish_reason)

    def close(self) -> None:
        """End the engine's process. May be called more than once."""
        self._engine.shutdown()

    def __enter__(self) -> Self:
        """The engine itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()
