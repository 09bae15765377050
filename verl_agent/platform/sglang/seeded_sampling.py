"""SGLang's sampler, in which requests with a seed draw as in `verl_agent.platform.seeded_sampling`.

SGLang 0.5.12, sampling/sampling_batch_info.py:93 reads seeds with deterministic inference only, which its attention for
CPUs does not have, and layers/sampler.py:225 has no seeds with FlashInfer.
"""

from typing import Any

import torch
from torch import Tensor

from verl_agent.errors import ConfigError
from verl_agent.platform.seeded_sampling import choose_tokens, uniform
from verl_agent.platform.versions import TESTED_SGLANG


def seed_sglang() -> None:
    """Make the engines that this process starts sample with seeds.

    Raises:
        ConfigError: SGLang has an untested version.
    """
    import sglang
    from sglang.srt.entrypoints import engine

    check_sglang(sglang.__version__)
    engine.run_scheduler_process = run_scheduler_process
    engine.Engine.run_scheduler_process_func = staticmethod(run_scheduler_process)


def check_sglang(version: str) -> None:
    """Check that the sampler of this version of SGLang is known."""
    if version != TESTED_SGLANG:
        raise ConfigError(
            f"seeded sampling was not tested with sglang {version}. Tested version: {TESTED_SGLANG}. Install it with "
            "`make setup-sglang`, or, for a GPU, `make setup DEVICE=gpu ENGINE=sglang VENV=.venv-sglang`."
        )


def run_scheduler_process(*args: Any, **kwargs: Any) -> None:
    """Run SGLang's process of the model, with the sampler of this module."""
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.managers import scheduler
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    upstream = SamplingBatchInfo.from_schedule_batch

    def from_schedule_batch(batch: Any, vocab_size: int) -> Any:
        info, params = upstream(batch, vocab_size), [request.sampling_params for request in batch.reqs]
        seeds = [-1 if one.sampling_seed is None else one.sampling_seed for one in params]
        info.sampling_seed = torch.tensor(seeds, dtype=torch.int64, device=info.device)
        return info

    SamplingBatchInfo.from_schedule_batch = staticmethod(from_schedule_batch)
    Sampler._sample_from_probs = lambda self, *of_batch: sample_sglang(*of_batch)
    scheduler.run_scheduler_process(*args, **kwargs)


def sample_sglang(probs: Tensor, info: Any, positions: Tensor, unlimited: bool) -> Tensor:
    """Return a token for each request; those without a seed draw from torch's generator.

    Args:
        probs: probabilities, float32 of shape (requests, vocabulary).
        info: SGLang's `SamplingBatchInfo`. A request without a seed has the seed -1.
        positions: positions of the last tokens so far, int64 of shape (requests,).
        unlimited: True if no request has top-k, top-p or min-p.

    Returns:
        int32 tensor of shape (requests,).
    """
    seeds = info.sampling_seed
    numbers = torch.rand(len(seeds), dtype=torch.float64, device=seeds.device)
    numbers = torch.where(seeds < 0, numbers, uniform(seeds, positions + 1))
    if unlimited:
        return choose_tokens(probs, numbers).int()
    ranked, tokens = probs.sort(stable=True, descending=True)
    kept = ranked.cumsum(-1) - ranked <= info.top_ps[:, None]
    kept &= torch.arange(probs.shape[1], device=probs.device) < info.top_ks[:, None]
    kept &= ranked >= ranked[:, :1] * info.min_ps[:, None]
    # In the order of the vocabulary, as without limits: a token must not depend on the limits of other requests.
    return choose_tokens(probs * torch.zeros_like(kept).scatter(1, tokens, kept), numbers).int()
