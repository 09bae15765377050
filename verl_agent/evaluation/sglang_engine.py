"""SGLang engine of an evaluation, in processes of its own."""

import os
from collections.abc import Mapping
from typing import Any

from verl_agent.errors import ConfigError
from verl_agent.evaluation.settings import EngineSettings
from verl_agent.evaluation.vllm_engine import Generation, LocalEngine, Route
from verl_agent.platform.sglang import LONGER_CONTEXT, SPARE_TOKENS

ON_CPU: Mapping[str, Any] = {
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_overlap_schedule": True,
}
"""Arguments of SGLang on a CPU, as in training."""
CACHE_TOKENS = 32_768
"""Tokens of all keys and values on a CPU, unless two sequences may have more."""
NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
"""SGLang's names of sampling parameters that vLLM calls otherwise."""


def sglang_options(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of SGLang's `async_generate` for one reply."""
    wanted = sampling_params.get("logprobs")
    sampling = {NAMES.get(key, key): value for key, value in sampling_params.items() if key != "logprobs"}
    return {
        "sampling_params": sampling,
        "return_logprob": bool(wanted),
        "top_logprobs_num": wanted if wanted and wanted is not True else 0,
    }


def generation(output: Mapping[str, Any], options: Mapping[str, Any]) -> Generation:
    """Return a reply of SGLang."""
    meta, ids = output["meta_info"], list(output["output_ids"])
    log_probs, extra = None, {}
    if options["return_logprob"]:
        log_probs = [float(value) for value, _, _ in meta["output_token_logprobs"][: len(ids)]]
    if options["top_logprobs_num"]:
        tokens = meta["output_top_logprobs"][: len(ids)]
        extra["top_log_probs"] = [[(int(token), float(value)) for value, token, _ in ranked] for ranked in tokens]
    return Generation(ids, log_probs, extra, (meta["finish_reason"] or {}).get("type"))


class SglangEngine(LocalEngine):
    """`TokenEngine` on SGLang's engine. Create it inside a running event loop, and close it.

    Raises:
        ConfigError: SGLang is not installed, or the machine has too few GPUs.
    """

    def __init__(self, model: str, settings: EngineSettings, context: int) -> None:
        os.environ[LONGER_CONTEXT] = "1"
        os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"  # before temperature and top_p
        try:
            import sglang
            import torch

            from verl_agent.platform.sglang.seeded_sampling import seed_sglang
        except ImportError as error:
            setup = "setup-sglang" if settings.device == "cpu" else "setup DEVICE=gpu ENGINE=sglang VENV=.venv-sglang"
            raise ConfigError(
                f"engine.name='sglang' needs SGLang, which does not import: {error}. Run `make {setup}` and activate "
                "the environment that it creates, or set engine.name=vllm."
            ) from error
        seed_sglang()
        copies = settings.copies(torch.cuda.device_count())
        self._route = Route(copies)
        own = {**ON_CPU, "max_total_tokens": max(CACHE_TOKENS, 2 * context)} if settings.device == "cpu" else {}
        self._engine = sglang.Engine(
            model_path=model,
            device=settings.device,
            dtype=settings.dtype,
            disable_cuda_graph=settings.enforce_eager,
            max_running_requests=settings.max_num_seqs,
            context_length=context + SPARE_TOKENS,
            tp_size=settings.tensor_parallel_size,
            dp_size=copies,
            mem_fraction_static=settings.gpu_memory_utilization,
            skip_tokenizer_init=True,
            log_level="error",
            **own,
        )

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generation:
        """Generate one reply."""
        options = sglang_options(sampling_params)
        output = await self._engine.async_generate(
            input_ids=prompt_ids, routed_dp_rank=self._route.copy_for(request_id), **options
        )
        return generation(output, options)
