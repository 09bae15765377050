"""vLLM engine of an evaluation, in a process of its own."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from verl_agent.errors import ConfigError, ReplyUnavailableError
from verl_agent.evaluation.settings import EngineSettings
from verl_agent.platform.exits import describe_status, wait_for_status
from verl_agent.platform.versions import setup_command
from verl_agent.runs.deaths import MemoryWatch
from verl_agent.runs.first_error import first_error_in
from verl_agent.runs.process_watch import output_files
from verl_agent.runs.processes import spawning_ending_processes
from verl_agent.system.compiler import compilation_variables

ON_CPU: Mapping[str, Any] = {
    "kv_cache_memory_bytes": 1 << 30,
    "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
}
"""Arguments of vLLM on a CPU, as in training; else it takes most of the memory, and a process for the model."""
SEEDED = "verl_agent.platform.seeded_sampling.SeededSampling"
"""Extension of vLLM's worker, which vLLM imports in the engine's process."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generated reply.

    Attributes:
        token_ids: generated ids, end-of-turn token included.
        log_probs: log-probability of each id; None if they were not requested.
        extra_fields: `top_log_probs` if alternatives were requested: ids and log-probs of the most likely tokens.
        stop_reason: vLLM's reason for the end of the reply.
    """

    token_ids: list[int]
    log_probs: list[float] | None
    extra_fields: dict[str, Any]
    stop_reason: str | None


def vllm_options(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of vLLM's SamplingParams for one reply.

    Args:
        sampling_params: the same keyword arguments, with `logprobs` as true or false, or as the number of most likely
            tokens to return besides.
    """
    wanted = sampling_params.get("logprobs")
    number = wanted if wanted and wanted is not True else 0
    return {**sampling_params, "logprobs": number if wanted else None}


def most_likely(by_id: Mapping[int, Any], number: int) -> list[tuple[int, float]]:
    """Return the ids and log-probs of the most likely tokens, the first one first.

    Args:
        by_id: vLLM's `Logprob` by id: the most likely tokens, and the sampled one.
    """
    ordered = sorted(by_id.items(), key=lambda entry: -entry[1].logprob)
    return [(int(token), float(entry.logprob)) for token, entry in ordered[:number]]


class Route:
    """Assignment of episodes to copies of the model, in turn.

    All turns of an episode go to one copy, which has the earlier ones in its prefix cache.
    """

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._of_episode: dict[str, int] = {}

    def copy_for(self, episode: str) -> int | None:
        """Return the index of the episode's copy; None if there is only one."""
        if self._copies == 1:
            return None
        return self._of_episode.setdefault(episode, len(self._of_episode) % self._copies)


class LocalEngine:
    """Engine in processes of this machine; `with` closes it."""

    _engine: Any

    def close(self) -> None:
        """Stop the engine's processes. May be called more than once."""
        self._engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class VllmEngine(LocalEngine):
    """`TokenEngine` on vLLM's asynchronous engine. Create it inside a running event loop, and close it.

    Raises:
        ConfigError: vLLM is not installed, or the machine has too few GPUs.
    """

    def __init__(self, model: str, settings: EngineSettings, context: int, seed: int = 0) -> None:
        # The engine's process must not be forked from a process that has threads or has used a GPU.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if settings.device == "cpu":
            os.environ |= compilation_variables()
        try:
            import torch
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise ConfigError(
                f"evaluation needs vLLM, which does not import: {error}. Run `{setup_command()}`."
            ) from error
        self._memory = MemoryWatch()
        self._memory.sample()
        copies = settings.copies(torch.cuda.device_count())
        self._route = Route(copies)
        arguments = AsyncEngineArgs(
            model=model,
            dtype=settings.dtype,
            enforce_eager=settings.enforce_eager,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=context,
            tensor_parallel_size=settings.tensor_parallel_size,
            data_parallel_size=copies,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            seed=seed,
            block_size=settings.block_size,
            worker_extension_cls=SEEDED,
            disable_log_stats=True,
            **(ON_CPU if settings.device == "cpu" else {}),
        )
        with spawning_ending_processes():  # vLLM's own processes go on when this one is killed
            self._engine = AsyncLLM.from_engine_args(arguments)
        manager = self._engine.engine_core.resources.engine_manager
        self._processes = list(getattr(manager, "processes", ()))

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generation:
        """Generate one reply.

        Raises:
            ReplyUnavailableError: the engine's process has ended.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        self._memory.sample()
        parameters = SamplingParams(
            **vllm_options(sampling_params), detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        outputs = self._engine.generate(
            {"prompt_token_ids": prompt_ids},
            parameters,
            f"{request_id}-{len(prompt_ids)}",
            data_parallel_rank=self._route.copy_for(request_id),
        )
        try:
            completion = [output async for output in outputs][-1].outputs[0]
        except EngineDeadError as error:
            raise ReplyUnavailableError(
                f"the rollout engine (vLLM's EngineCore) {self._explain()}To resume, run the same command with "
                "evaluation.output_dir set to the folder of this evaluation."
            ) from error
        ids = list(completion.token_ids)
        log_probs = None
        if completion.logprobs:
            log_probs = [by_id[token].logprob for token, by_id in zip(ids, completion.logprobs, strict=True)]
        extra = {}
        if completion.logprobs and parameters.logprobs:
            extra["top_log_probs"] = [most_likely(by_id, parameters.logprobs) for by_id in completion.logprobs]
        return Generation(ids, log_probs, extra, completion.finish_reason)

    def _explain(self) -> str:
        """Return how the engine ended, and why as far as there is evidence."""
        _, status = wait_for_status(self._processes, timeout_s=1.0) or (0, None)
        how = "ended unexpectedly" if status is None else describe_status(status)
        if lack := self._memory.evidence():
            return f"{how}. {lack} Lower engine.max_num_seqs or engine.gpu_memory_utilization. "
        if status == -signal.SIGKILL:  # it wrote no error; those in the log followed
            return f"{how}, by a person, another program or the kernel. "
        error = first_error_in(output_files(os.getpid()))  # the engine writes to the same log
        return f"{how}. The first error in its log:\n{error}\n" if error else f"{how}. "
