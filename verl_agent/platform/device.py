"""verl's platform interface for a machine without an accelerator."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from verl_agent.platform.detect import use_cpu_device


class CpuDevice(ModuleType):
    """What verl asks of `torch.cuda`, answered for the CPU. Anything else comes from `torch.cpu`."""

    def __init__(self) -> None:
        super().__init__("cpu_device", "torch.cpu with the memory and random-state calls of torch.cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    @staticmethod
    def is_available() -> bool:
        """Always."""
        return True

    @staticmethod
    def device_count() -> int:
        """One: the processor with all its cores."""
        return 1

    @staticmethod
    def current_device() -> torch.device:
        """A device, not an index: `tensor.to(0)` would ask for an accelerator."""
        return torch.device("cpu")

    @staticmethod
    def set_device(device: object) -> None:
        """There is no other device to choose."""

    @staticmethod
    def empty_cache() -> None:
        """Nothing is cached."""

    @staticmethod
    def ipc_collect() -> None:
        """Nothing is shared between devices."""

    @staticmethod
    def memory_allocated(device: object = None) -> int:
        """Bytes that this process holds (resident set)."""
        return int(psutil.Process().memory_info().rss)

    memory_reserved = memory_allocated
    max_memory_allocated = memory_allocated
    max_memory_reserved = memory_allocated

    @staticmethod
    def reset_peak_memory_stats(device: object = None) -> None:
        """No peak is kept."""

    @staticmethod
    def mem_get_info(device: object = None) -> tuple[int, int]:
        """Free and total bytes of the machine."""
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    @staticmethod
    def get_device_name(device: object = None) -> str:
        """The word `cpu`."""
        return "cpu"

    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """The CPU, one rank a process, gloo between ranks, weights handed over in shared memory."""

    _device = CpuDevice()

    @property
    def device_name(self) -> str:
        """Device type of tensors."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """No vendor-specific engine exists."""
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        """The `torch.cuda` of this platform."""
        return self._device

    def is_available(self) -> bool:
        """Whether this process shall use it."""
        return use_cpu_device()

    def current_device(self) -> torch.device:
        """See `CpuDevice.current_device`."""
        return self._device.current_device()

    def device_count(self) -> int:
        """One."""
        return self._device.device_count()

    def set_device(self, device_index: int) -> None:
        """There is no other."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Work on the CPU is done when a call returns."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        """The system's allocator has none."""

    def empty_cache(self) -> None:
        """Nothing is cached."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Unknown."""
        return None, None

    def communication_backend_name(self) -> str:
        """Collectives run over gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Ray hands out the logical resource `GPU`, and so sets this variable."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler."""
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def ray_resource_name(self) -> str:
        """A logical resource that `ray.init(num_gpus=...)` declares; Ray has no accelerator kind for the CPU."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Ray shall leave the variable alone in rollout servers."""
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """No device memory to share: verl then uses shared memory."""
        return False

    def cudart(self) -> None:
        """No CUDA runtime."""
