"""verl's platform interface for a machine without an accelerator."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
from typing_extensions import override
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_agent.platform.detect import use_cpu_device


class CpuDevice(ModuleType):
    """Replacement of `torch.cuda` for the CPU; all other attributes are those of `torch.cpu`."""

    def __init__(self) -> None:
        super().__init__("cpu_device", "torch.cpu with the memory and random-state calls of torch.cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    @staticmethod
    def is_available() -> bool:
        """Return True."""
        return True

    @staticmethod
    def device_count() -> int:
        """Return 1: the processor with all its cores."""
        return 1

    @staticmethod
    def current_device() -> torch.device:
        """Return a device rather than an index, since `tensor.to(0)` selects an accelerator."""
        return torch.device("cpu")

    @staticmethod
    def set_device(device: object) -> None:
        """Do nothing: the CPU is the only device."""

    @staticmethod
    def empty_cache() -> None:
        """Do nothing: the CPU has no cache of freed memory."""

    @staticmethod
    def ipc_collect() -> None:
        """Do nothing: the CPU shares no device memory."""

    @staticmethod
    def memory_allocated(device: object = None) -> int:
        """Return the resident memory of this process, in bytes."""
        return int(psutil.Process().memory_info().rss)

    memory_reserved = memory_allocated
    max_memory_allocated = memory_allocated
    max_memory_reserved = memory_allocated

    @staticmethod
    def reset_peak_memory_stats(device: object = None) -> None:
        """Do nothing: no peak is measured."""

    @staticmethod
    def mem_get_info(device: object = None) -> tuple[int, int]:
        """Return free and total memory of the machine, in bytes."""
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    @staticmethod
    def get_device_name(device: object = None) -> str:
        """Return `cpu`."""
        return "cpu"

    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """CPU platform: one rank a process, gloo between ranks, weight transfer through shared memory."""

    _device = CpuDevice()

    @property
    def device_name(self) -> str:
        """Device type of tensors."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """Vendor of the device; no engine is specific to it."""
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        """Replacement of `torch.cuda`."""
        return self._device

    def is_available(self) -> bool:
        """Return True if this process uses the CPU device."""
        return use_cpu_device()

    @override
    def current_device(self) -> torch.device:
        return self._device.current_device()

    def device_count(self) -> int:
        """Return 1."""
        return self._device.device_count()

    def set_device(self, device_index: int) -> None:
        """Do nothing: the CPU is the only device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: calls on the CPU are synchronous."""

    def manual_seed(self, seed: int) -> None:
        """Seed the random generator of torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the allocator of the CPU has no settings."""

    def empty_cache(self) -> None:
        """Do nothing: the CPU has no cache of freed memory."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return None twice: a CPU has no compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return the backend of collectives."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable that Ray sets for the logical resource `GPU`."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Do nothing: the CPU device has no profiler."""
        yield

    def profiler_start(self) -> None:
        """Do nothing: the CPU device has no profiler."""

    def profiler_stop(self) -> None:
        """Do nothing: the CPU device has no profiler."""

    def ray_resource_name(self) -> str:
        """Return the logical resource that `ray.init(num_gpus=...)` declares; Ray has no resource for CPU devices."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return the variable that keeps Ray from changing the visible devices of rollout servers."""
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Return False, so that verl uses shared memory."""
        return False

    def cudart(self) -> None:
        """Do nothing: the CPU has no CUDA runtime."""
