"""verl's platform interface for a machine without an accelerator."""

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_agent.platform.detect import use_cpu_device


def _nothing(*args: object, **kwargs: object) -> None:
    """Do nothing: a CPU is the only device, calls on it are synchronous, and it has no cache, profiler or runtime."""


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
    def memory_allocated(device: object = None) -> int:
        """Return the resident memory of this process, in bytes."""
        return int(psutil.Process().memory_info().rss)

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    @staticmethod
    def mem_get_info(device: object = None) -> tuple[int, int]:
        """Return free and total memory of the machine, in bytes."""
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    @staticmethod
    def get_device_name(device: object = None) -> str:
        """Return `cpu`."""
        return "cpu"

    set_device = empty_cache = ipc_collect = reset_peak_memory_stats = staticmethod(_nothing)
    get_rng_state, set_rng_state = staticmethod(torch.get_rng_state), staticmethod(torch.set_rng_state)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """CPU platform: one rank a process, gloo between ranks, weight transfer through shared memory."""

    _device = CpuDevice()
    device_name = vendor_name = "cpu"  # no engine is specific to the vendor
    device_module = _device
    current_device, device_count = staticmethod(_device.current_device), staticmethod(_device.device_count)
    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        """Return True if this process uses the CPU device."""
        return use_cpu_device()

    def manual_seed(self, seed: int) -> None:
        """Seed the random generator of torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return None twice: a CPU has no compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return the backend of collectives."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable that Ray sets for the logical resource `GPU`."""
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        """Return a context that does nothing: the CPU device has no profiler."""
        return nullcontext()

    def ray_resource_name(self) -> str:
        """Return the logical resource that `ray.init(num_gpus=...)` declares; Ray has no resource for CPU devices."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return the variable that keeps Ray from changing the visible devices of rollout servers."""
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Return False, so that verl uses shared memory."""
        return False
