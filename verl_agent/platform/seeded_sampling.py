"""Sampling of requests with a seed: one number, a hash of seed and position, chooses the token.

A token depends on the seed, its position in the sequence and the probabilities alone. A request that continues a
sequence with the same seed therefore draws the numbers that a longer request would have drawn.

vLLM 0.28.0, v1/sample/ops/topk_topp_sampler.py:470 draws one number for each token of the vocabulary instead, for one
request after another. Its second model runner (v1/worker/gpu) has a sampler of its own, which also draws from seed and
position and stays as it is.
"""

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from verl_agent.errors import ConfigError

TESTED = ("0.24.0", "0.28.0")
"""Versions of vLLM whose sampler is known, on GPUs and on the CPU."""
BLOCK = 256
"""Tokens whose probabilities are added up before the cumulative sum: it takes a fraction of the memory and time."""
WEYL, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""Constants of SplitMix64 (Steele, Lea and Flood, 2014) as signed numbers; products of int64 tensors wrap around."""

Sampler = Callable[..., Tensor]


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return a number in [0, 1) for each pair of seed and position.

    Args:
        seeds: seeds of the requests, int64 of shape (n,).
        positions: positions of the tokens in their sequences, int64 of shape (n,).

    Returns:
        float64 tensor of shape (n,).
    """
    bits = _mix(_mix(seeds + WEYL) + positions * WEYL)
    return (bits >> 11 & (1 << 53) - 1).double() * 2.0**-53


def _mix(bits: Tensor) -> Tensor:
    """Return the bits of SplitMix64's output function; a shift to the right of int64 repeats the sign."""
    bits = (bits ^ (bits >> 30 & (1 << 34) - 1)) * FIRST
    bits = (bits ^ (bits >> 27 & (1 << 37) - 1)) * SECOND
    return bits ^ (bits >> 31 & (1 << 33) - 1)


def choose_tokens(weights: Tensor, numbers: Tensor) -> Tensor:
    """Return the first token of each row whose cumulative probability exceeds the row's number.

    Args:
        weights: probabilities or their multiples, float of shape (n, vocabulary). Tokens of weight 0 are never chosen.
        numbers: numbers in [0, 1), float64 of shape (n,).

    Returns:
        int64 tensor of shape (n,).
    """
    rows, tokens = weights.shape
    if tokens % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -tokens % BLOCK))
    blocks = weights.view(rows, -1, BLOCK)
    until = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = numbers[:, None] * until[:, -1:]
    block = _first_above(until, target)
    target = target - torch.where(block > 0, until.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks.take_along_dim(block[:, :, None], 1)[:, 0].cumsum(-1, dtype=torch.float64)
    return (block * BLOCK + _first_above(inside, target))[:, 0]


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """Return the first index of each row whose sum exceeds `target`, or where rounding left none, the last increase."""
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(sums, target, right=True), last).clamp_(max=sums.shape[1] - 1)


class RequestGenerator(torch.Generator):
    """Generator of one request of vLLM, which knows the request's seed and position.

    It is a real generator, because vLLM's speculative decoding draws from it. `sample_vllm` does not. vLLM discards the
    sample after a part of a prompt and moves the offset back (v1/worker/gpu_model_runner.py:3825). Nothing was drawn
    then, and generators on a CPU have no offset.
    """

    def __new__(cls, request: Any) -> Self:
        """Return a generator on the device of the request's own generator."""
        made: Self = super().__new__(cls, request.generator.device)
        return made

    def __init__(self, request: Any) -> None:
        self.request_seed: int = request.sampling_params.seed
        self.manual_seed(self.request_seed)
        self._request = weakref.proxy(request)  # which refers to this generator

    @property
    def position(self) -> int:
        """Number of tokens of the sequence so far, prompt included."""
        return int(self._request.num_tokens)

    def get_offset(self) -> int:
        """Return the offset of a generator on a GPU, and 0 on a CPU."""
        return 0 if self.device.type == "cpu" else int(super().get_offset())

    def set_offset(self, offset: int) -> None:
        """Move the offset, but not before the first number."""
        if offset > 0:
            super().set_offset(offset)


def sample_vllm(unseeded: Sampler, probs: Tensor, generators: Mapping[int, torch.Generator], *args: Any) -> Tensor:
    """Return a token for each row, by `choose_tokens` for requests with a seed.

    Args:
        unseeded: vLLM's `random_sample`, for the others. It overwrites the probabilities.
        probs: probabilities, float32 of shape (requests, vocabulary).
        generators: generator of each row whose request has a seed.
        args: further arguments of `unseeded`.

    Returns:
        int64 tensor of shape (requests,).
    """
    seeded = {row: one for row, one in sorted(generators.items()) if isinstance(one, RequestGenerator)}
    if not seeded:
        return unseeded(probs, generators, *args)
    places = torch.tensor([(row, one.request_seed, one.position) for row, one in seeded.items()]).to(probs.device)
    rows, seeds, positions = places.unbind(1)
    if len(seeded) == len(probs):
        return choose_tokens(probs, uniform(seeds, positions))
    chosen = choose_tokens(probs[rows], uniform(seeds, positions))
    others = {row: one for row, one in generators.items() if row not in seeded}
    return unseeded(probs, others, *args).index_copy_(0, rows, chosen)


def seed_vllm() -> None:
    """Make vLLM choose the tokens of requests with a seed by `choose_tokens` in this process."""
    import vllm
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    check_vllm(vllm.__version__)
    sampler = topk_topp_sampler.TopKTopPSampler
    if isinstance(topk_topp_sampler.random_sample, partial):
        return  # done
    forward_cpu, post_init = sampler.forward_cpu, CachedRequestState.__post_init__

    def forward(self: Any, logits: Tensor, generators: dict[int, torch.Generator], *args: Any) -> Any:
        """Call `random_sample` if a request has a seed. Unless all have one, vLLM ignores the seeds here."""
        return self.forward_native(logits, generators, *args) if generators else forward_cpu(self, logits, {}, *args)

    def replace_generator(self: Any) -> None:
        post_init(self)
        if self.generator is not None:
            self.generator = RequestGenerator(self)

    topk_topp_sampler.random_sample = partial(sample_vllm, topk_topp_sampler.random_sample)
    sampler.forward_cpu = forward
    CachedRequestState.__post_init__ = replace_generator


def check_vllm(version: str) -> None:
    """Check that the sampler of this version of vLLM is known."""
    if version.partition("+")[0] not in TESTED:
        raise ConfigError(
            f"seeded sampling was not tested with vllm {version}. Tested versions: {', '.join(TESTED)}. Install one of "
            "them with `make setup`, or, for a GPU, `make setup DEVICE=gpu`."
        )


class SeededSampling:
    """Extension of vLLM's worker, which samples with seeds in the engine's process.

    vLLM makes it a base of the worker's class, and verl's extension calls this `__new__` too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Sample with seeds from here on."""
        seed_vllm()
        return super().__new__(cls)
