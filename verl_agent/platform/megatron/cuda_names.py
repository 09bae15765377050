"""Names of CUDA in torch, answered by the CPU, so that Megatron's code runs where no GPU is.

Megatron has `torch.cuda` and `device="cuda"` as literals in about 400 places, and no setting for another device. Only a
process that imports Megatron calls `answer_cuda_names`.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

CPU = torch.device("cpu")
FACTORIES = (
    *("tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
)
"""Functions of torch that create tensors and take a device."""


class _Done:
    """Work that is done when a call returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept and ignore all options."""

    def synchronize(self, *args: object, **kwargs: object) -> None:
        """Do nothing."""

    wait_stream = wait_event = record = wait = synchronize

    def query(self) -> bool:
        """Return True."""
        return True


class Event(_Done):
    """Event that has happened."""


class Stream(_Done):
    """Stream of work without a device's queue."""

    cuda_stream = 0
    device = CPU

    def record_event(self, event: object = None) -> Event:
        """Return an event that has happened."""
        return Event()


def answer_cuda_names() -> None:
    """Replace names of torch in this process; repeated calls change nothing."""
    if getattr(torch.cuda, "answered_by_cpu", False):
        return
    from torch.utils import _device

    # `with torch.device("meta")` recognizes factories by identity, in a set that it caches at the first call.
    _device._device_constructors()
    _replace_cuda_functions(torch.cuda)
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _replace_tensor_methods(torch.Tensor)
    torch.nn.Module.cuda = lambda module, *_, **__: module
    torch.cuda.answered_by_cpu = True


def _replace_cuda_functions(cuda: Any) -> None:
    """Replace functions of `torch.cuda`. `is_available` stays, so that code with a path for the CPU takes it."""
    for name in ("synchronize", "empty_cache", "set_device", "set_stream", "reset_peak_memory_stats"):
        setattr(cuda, name, _constant(None))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
        setattr(cuda, name, _constant(0))
    stream = Stream()
    cuda.Stream, cuda.Event = Stream, Event
    cuda.current_device = _constant(CPU)
    cuda.current_stream, cuda.default_stream = _constant(stream), _constant(stream)
    cuda.stream = _no_context
    cuda.is_current_stream_capturing = _constant(False)
    for random in (cuda, cuda.random):
        random.get_rng_state = lambda *_, **__: torch.get_rng_state()
        random.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
        random.manual_seed = lambda seed: torch.manual_seed(seed)
    cuda.nvtx.range_push, cuda.nvtx.range_pop = _constant(None), _constant(None)


def _replace_tensor_methods(tensor: Any) -> None:
    """Replace methods of tensors that name a device."""
    move, kind = tensor.to, tensor.type

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return move(self, *map(_cpu, args), **{name: _cpu(value) for name, value in kwargs.items()})

    def type_of(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the name of the type on CUDA: Megatron's optimizers take no parameter with another one."""
        if args or kwargs:
            return kind(self, *args, **kwargs)
        return kind(self).replace("torch.", "torch.cuda.", 1)

    tensor.to, tensor.type = to, type_of
    tensor.cuda = lambda self, *_, **__: self
    tensor.record_stream = _constant(None)


def _constant(value: Any) -> Callable[..., Any]:
    """Return a function of its own for each name, with this result: torch's compiler refuses one under two names."""

    def constant(*args: Any, **kwargs: Any) -> Any:
        return value

    return constant


def _no_context(stream: object = None) -> AbstractContextManager[None]:
    return nullcontext()


def _cpu(argument: Any) -> Any:
    """Return the CPU in place of a CUDA device, and any other argument as it is."""
    if isinstance(argument, str) and argument.startswith("cuda"):
        return "cpu"
    return CPU if isinstance(argument, torch.device) and argument.type == "cuda" else argument


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return create
