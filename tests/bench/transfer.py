"""Benchmark of the transfer of weights on a CPU, compared with one copy of the same bytes into shared memory.

python -m tests.bench.transfer [--models 135M 1.5B] [--rounds 3]

A trainer's float32 weights go through verl's sender to a vLLM engine in its own process, as after each training step.
The weights are random. Layers of equal shape share one tensor here, so that 1.5 billion parameters fit into the memory.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config
from typing_extensions import override

from verl_agent.evaluation.vllm_engine import ON_CPU
from verl_agent.platform.weight_transfer import create_memory, repeated_parameters
from verl_agent.platform.worker_extension import CpuWorkerExtension

CONFIGS = {
    "135M": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    ),
    "1.5B": Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
    ),
}
"""Shapes of SmolLM2-135M and Qwen2.5-1.5B."""
COPIES = ("aten::copy_", "aten::clone", "aten::_to_copy")
SOCKET = "ipc:///tmp/rl-colocate-zmq-0-replica-0-rank-0.sock"


class Copied(TorchDispatchMode):
    """Counter of the bytes that PyTorch's copies write."""

    written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a copy."""
        result = func(*args, **(kwargs or {}))
        if func.name().partition(".")[0] in COPIES:
            self.written += result.nbytes
        return result


class TimedExtension(CpuWorkerExtension):
    """Engine's side that counts its seconds and bytes."""

    def measured_update(self) -> tuple[float, int]:
        """Receive weights; return the seconds in which they are loaded bucket by bucket, and the bytes copied."""
        self._load_s = 0.0
        with Copied() as copied:
            self.update_weights_from_ipc(use_shm=True)
        return self._load_s, copied.written

    @override
    def _update_weights(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        super()._update_weights(*args, **kwargs)
        self._load_s += time.perf_counter() - began


def weights_of(config: Any) -> dict[str, torch.Tensor]:
    """Return random float32 weights by name, those that the CPU engine sends."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: value.shape for name, value in model.state_dict().items() if name not in repeated_parameters(model)}
    filled = {shape: torch.randn(shape) / 50 for shape in set(shapes.values())}
    return {name: filled[shape] for name, shape in shapes.items()}


def copy_once(weights: dict[str, torch.Tensor]) -> float:
    """Return the seconds in which the weights are copied once into new shared memory."""
    began = time.perf_counter()
    memory = create_memory(size_of(weights), f"transfer_{uuid4().hex}")
    target, start = torch.frombuffer(memory.buf, dtype=torch.float32), 0
    for value in weights.values():
        target[start : start + value.numel()].view(value.shape).copy_(value)
        start += value.numel()
    seconds = time.perf_counter() - began
    del target
    memory.close()
    memory.unlink()
    return seconds


def new_engine(folder: Path, dtype: str, **options: Any) -> Any:
    """Return vLLM with a model, in a process of its own, whose worker receives weights."""
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM

    extension = "tests.bench.transfer.TimedExtension"  # the module has another name where it is the program
    options |= {"dtype": dtype, "max_model_len": 512, "enforce_eager": True, "skip_tokenizer_init": True}
    return LLM(str(folder), worker_extension_cls=extension, **options, **ON_CPU)


def transfer(engine: Any, weights: dict[str, torch.Tensor], bucket: int) -> tuple[float, float, float]:
    """Send weights in buckets of so many MiB.

    Returns:
        Seconds, seconds of loading, and bytes that copies have written for each byte of the weights. The packing of
        weights at the end copies them once more, and is not counted.
    """
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    began = time.perf_counter()
    with ThreadPoolExecutor(1) as pool, Copied() as copied:
        received = pool.submit(engine.collective_rpc, "measured_update")
        asyncio.run(BucketedWeightSender(SOCKET, bucket, use_shm=True).async_send_weights(iter(weights.items())))
        ((load_s, loaded),) = received.result()
    return time.perf_counter() - began, load_s, (copied.written + loaded) / size_of(weights)


def size_of(weights: dict[str, torch.Tensor]) -> int:
    """Return the bytes of weights."""
    return sum(value.nbytes for value in weights.values())


def measure(name: str, rounds: int) -> list[str]:
    """Return a row of the table: medians of `rounds` transfers after one that warms up."""
    from verl_agent.training.preflight.machine import smallest_bucket_mb

    weights = weights_of(CONFIGS[name])
    bucket = smallest_bucket_mb(max(value.numel() for value in weights.values()), 2048)
    with tempfile.TemporaryDirectory() as folder:
        CONFIGS[name].save_pretrained(folder)
        engine = new_engine(Path(folder), "bfloat16", load_format="dummy")
        found = [(copy_once(weights), *transfer(engine, weights, bucket)) for _ in range(rounds + 1)][1:]
        engine.llm_engine.engine_core.shutdown()
    once, seconds, load_s, copies = map(median, zip(*found, strict=True))
    ratios = sorted(one[1] / one[0] for one in found)
    numbers = [size_of(weights) / 1e9, copies, once, seconds, load_s]
    return [
        name,
        *(f"{number:.2f}" for number in numbers),
        f"{median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.transfer", description="Measure transfers of weights.")
    parser.add_argument("--models", nargs="*", choices=list(CONFIGS), default=list(CONFIGS), help="sizes of models")
    parser.add_argument("--rounds", type=int, default=3, help="transfers of each model (default 3)")
    options = parser.parse_args(arguments)
    table = Table("model", "GB", "copies", "one copy s", "transfer s", "- loading s", "ratio")
    for name in options.models:
        table.add_row(*measure(name, options.rounds))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
