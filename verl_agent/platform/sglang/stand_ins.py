"""Stand-ins of the compiled packages that SGLang imports and a text model on a CPU does not call.

A file `.pth` in the environment of `make setup-sglang` calls `install` when Python starts. SGLang spawns processes that
import it before any other code of this package runs.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import version
from types import ModuleType
from typing import Any

from verl_agent.platform.detect import use_cpu_device

KERNELS = ("sgl_kernel", "sgl_kernel.kvcacheio")
"""Modules of SGLang's GPU kernels. SGLang 0.5.12, mem_cache/memory_pool_host.py:47 imports them on every device."""
CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"
"""Environment variable with which SGLang's function `is_cpu` returns True if it is `1`."""
_libraries: list[Any] = []
"""Library of the operators; its operators exist as long as it does."""


def install() -> None:
    """Provide the stand-ins to this process if it uses the CPU device; a second call does nothing."""
    if use_cpu_device() and not installed():
        os.environ[CPU_ENGINE] = "1"
        sys.meta_path.insert(0, TorchvisionFinder())
        sys.meta_path.append(KernelFinder())


def installed() -> bool:
    """Return True if this process has the stand-ins."""
    return any(isinstance(finder, KernelFinder) for finder in sys.meta_path)


class KernelModule(ModuleType):
    """Module whose functions raise when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args: object, **kwargs: object) -> None:
            raise RuntimeError(
                f"SGLang called {self.__name__}.{name}, a GPU kernel that does not exist on a CPU. Leave the settings "
                "in actor_rollout_ref.rollout.engine_kwargs.sglang as cpu.yaml has them."
            )

        return missing


class KernelFinder(MetaPathFinder, Loader):
    """Finder of `KERNELS` where the package sglang-kernel is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the packages of `KERNELS`."""
        return ModuleSpec(fullname, self, is_package=True) if fullname in KERNELS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create a module without code."""
        return KernelModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has no code."""


class TorchvisionFinder(MetaPathFinder):
    """Finder of torchvision, which defines its operators before its code runs.

    The wheel on PyPI is a build for CUDA. Without CUDA its operators are not loaded, and torchvision 0.28.0,
    _meta_registrations.py:163 then fails on the missing operator `nms`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find torchvision, with a loader that defines its operators first."""
        if fullname != "torchvision":
            return None
        spec = PathFinder.find_spec(fullname)
        if spec is not None and spec.origin and not version("torchvision").endswith("+cpu"):
            spec.loader = _OperatorsFirst(fullname, spec.origin)
        return spec


class _OperatorsFirst(SourceFileLoader):
    """Loader of torchvision."""

    def exec_module(self, module: ModuleType) -> None:
        """Define the operators, then run the module."""
        define_operators()
        super().exec_module(module)


def define_operators() -> None:
    """Define the operators of torchvision that its Python code registers; they cannot be called."""
    import torch

    if not _libraries:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
