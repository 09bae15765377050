"""Limits of this machine: rates of matrix products, bandwidth of its memory, and the CPU."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")
Rates = Mapping[int, float]
"""Operations a second of products, by their number of tokens."""


ROUNDS = 10
"""Measurements of each rate. They take turns, so that a busy moment does not hit all those of one rate."""
ROUNDED = 32
"""Multiple to which the tokens of a product are rounded, so that few products are measured."""


def rounded(tokens: float) -> int:
    """Return the number of tokens of the product that stands for one of `tokens`."""
    return round(tokens / ROUNDED) * ROUNDED or max(1, round(tokens))


def product_rates(
    sizes: Iterable[int], hidden: int, inner: int, dtypes: Sequence[torch.dtype]
) -> dict[torch.dtype, Rates]:
    """Return the highest rates of a layer's largest products by dtype, at numbers of tokens."""
    work: dict[tuple[torch.dtype, int], Callable[[], Any]] = {}
    operations = {tokens: 4.0 * tokens * hidden * inner * times(tokens) for tokens in sizes}
    for dtype in dtypes:
        up, down = (torch.randn(*shape).to(dtype) for shape in ((hidden, inner), (inner, hidden)))
        for tokens in operations:
            x = torch.randn(tokens, hidden).to(dtype)
            work[dtype, tokens] = partial(multiply, x, up, down)
    seconds = shortest(work)
    return {dtype: {tokens: count / seconds[dtype, tokens] for tokens, count in operations.items()} for dtype in dtypes}


def times(tokens: int) -> int:
    """Return the number of products in a measurement."""
    return max(1, 4096 // tokens)


def multiply(x: Tensor, up: Tensor, down: Tensor) -> None:
    """Multiply with a layer's matrices."""
    for _ in range(times(len(x))):
        (x @ up) @ down


def shortest(actions: Mapping[Key, Callable[[], Any]]) -> dict[Key, float]:
    """Return the least seconds of each action; in each round, all of them take turns."""
    seconds = dict.fromkeys(actions, float("inf"))
    for _ in range(ROUNDS):
        for key, action in actions.items():
            began = time.perf_counter()
            action()
            seconds[key] = min(seconds[key], time.perf_counter() - began)
    return seconds


def bandwidths() -> dict[str, float]:
    """Return the bytes a second of actions on 512 MB of float32: a copy reads and writes, the others only read."""
    source = torch.ones(2**14, 2**13)
    target, vector = torch.empty_like(source), torch.ones(2**13)
    size = source.numel() * source.itemsize
    actions = {
        "copy": lambda: target.copy_(source),
        "sum": source.sum,
        "matrix times vector": lambda: source @ vector,
    }
    return {name: size * (1 + (name == "copy")) / seconds for name, seconds in shortest(actions).items()}


def processor(info: str) -> dict[str, str | int | bool]:
    """Return the facts about the CPU that decide its rates.

    Args:
        info: text of /proc/cpuinfo.
    """
    first = dict(line.partition(":")[::2] for line in info.partition("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, value in first.items()}
    names = {"model name": "name", "cpu family": "family", "model": "model", "stepping": "stepping"}
    found: dict[str, str | int | bool] = {name: facts.get(key, "unknown") for key, name in names.items()}
    flags = facts.get("flags", "").split()
    found |= {flag: flag in flags for flag in ("avx512_bf16", "amx_bf16")}
    return {**found, "logical_cores": os.cpu_count() or 0, "usable_cores": len(os.sched_getaffinity(0))}
