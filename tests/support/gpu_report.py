"""Runs of `make test-gpu`, the trace of the GPU's memory during a run, and the report that both are written to."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verl_agent.config.plan import RunPlan
from verl_agent.platform.versions import installed_version
from verl_agent.system.installation import load_kernel
from verl_agent.trace.provenance import Provenance
from verl_agent.training.preflight.estimates import estimate_footprint, shape_of

REPORT = Path(os.environ.get("GPU_REPORT", "gpu_report.json"))
"""File of the report; the environment variable chooses another."""
SAMPLE_MS = 200
"""Milliseconds between two samples of the GPU's memory."""
SMALL = (
    "actor_rollout_ref.model.path=smollm2-135m",
    "env.options.prompt=short",
    "env.options.distractors=0",
    "episode.max_tokens_per_turn=48",
    "data.train_batch_size=8",
    "data.max_prompt_length=512",
    "data.max_response_length=1024",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    "trainer.n_gpus_per_node=1",
    "trainer.total_training_steps=2",
    "trainer.test_freq=-1",
    "trainer.max_restarts=0",
    "trainer.check_memory=false",
)
"""Changes of recipes/textcraft/grpo for SmolLM2-135M on one GPU."""


@dataclass(frozen=True, slots=True)
class GpuRun:
    """One way to train.

    Attributes:
        overrides: changes beside `SMALL`.
        packages: distributions that it needs.
        kernel: attention that it takes from the hub; empty for none.
    """

    overrides: tuple[str, ...]
    packages: tuple[str, ...] = ()
    kernel: str = ""

    def missing(self) -> list[str]:
        """Return the needed distributions and kernels that are not on this machine and cannot be downloaded."""
        missing = [name for name in self.packages if installed_version(name) is None]
        if self.kernel and not missing:
            try:
                load_kernel(self.kernel)
            except Exception as error:  # boundary to the hub, which a machine may not reach
                missing.append(f"{self.kernel} ({str(error)[:200]})")
        return missing


ONE_RANK = tuple(
    f"{model}.megatron.tensor_model_parallel_size=1" for model in ("actor_rollout_ref.actor", "actor_rollout_ref.ref")
)
TRAINERS = {
    "fsdp2": GpuRun(("+overlay/engine=fsdp2",)),
    "fsdp": GpuRun(("+overlay/engine=fsdp",)),
    "offload": GpuRun(("offload=true",)),
    "critic": GpuRun(("+overlay/algorithm=ppo", "offload=false")),
    "lora": GpuRun(("+overlay/lora=rank_32",)),
    "sdpa": GpuRun(("+overlay/attention=sdpa",)),
    "flash": GpuRun(("+overlay/attention=flash",), ("flash-attn",)),
    "kernels": GpuRun(("+overlay/attention=kernels",), ("kernels",), "kernels-community/flash-attn2"),
    "megatron": GpuRun(("model_engine=megatron", *ONE_RANK), ("megatron-core", "transformer-engine-torch")),
}
"""Training engines and attentions, each combined with each rollout engine."""
ROLLOUTS = {name: GpuRun((f"+overlay/rollout={name}",), (name,)) for name in ("vllm", "sglang")}


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Used memory of one GPU over time, of all processes on it.

    Attributes:
        before_gb: used memory before the run.
        used_gb: samples during the run.
    """

    before_gb: float
    used_gb: tuple[float, ...]

    @property
    def peak_gb(self) -> float:
        """Largest memory of the run."""
        return max(self.used_gb, default=self.before_gb) - self.before_gb

    @property
    def released_gb(self) -> float:
        """Largest fall of memory that a later rise follows: memory that the engine freed in sleep and took again."""
        largest = 0.0
        for middle, low in enumerate(self.used_gb):
            before, after = self.used_gb[: middle + 1], self.used_gb[middle:]
            largest = max(largest, min(max(before), max(after)) - low)
        return largest


def parse_trace(samples: str) -> MemoryTrace:
    """Return the trace that `nvidia-smi` printed: a line of MiB for each sample; the first is before the run."""
    used = [int(line) * 2**20 / 1e9 for line in samples.split() if line.isdigit()]
    return MemoryTrace(used[0] if used else 0.0, tuple(used[1:]))


@contextmanager
def sampled_memory(file: Path) -> Iterator[None]:
    """Write the used memory of the first GPU to a file while the block runs."""
    query = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with file.open("w") as out:
        subprocess.run(query, stdout=out, check=True)
        sampler = subprocess.Popen([*query, f"--loop-ms={SAMPLE_MS}"], stdout=out)
        try:
            yield
        finally:
            sampler.terminate()
            sampler.wait()


def summarize(
    steps: Mapping[int, Mapping[str, float]], trace: MemoryTrace, footprint: Mapping[str, float]
) -> dict[str, Any]:
    """Return the entry of a run in the report."""
    last = steps[max(steps)]
    kept = ("timing_s/", "perf/", "training/rollout_", "actor/grad_norm", "actor/entropy")
    return {
        "estimated": dict(footprint),
        "peak_gb": round(trace.peak_gb, 2),
        "released_gb": round(trace.released_gb, 2),
        "metrics": {name: value for name, value in sorted(last.items()) if name.startswith(kept)},
    }


def estimated(config: Any, card_gb: float) -> dict[str, float]:
    """Return the estimated GB of a GPU in training and in play, for a resolved config with the path of its model."""
    plan = RunPlan.read(config)
    shape = shape_of(plan.actor.path)
    assert shape is not None
    footprint = estimate_footprint(plan, shape, shape if plan.critic else None, card_gb)
    return {"train_gb": round(footprint.train_gb, 2), "play_gb": round(footprint.play_gb, 2)}


@dataclass(slots=True)
class Report:
    """Report of `make test-gpu`, written again after each entry, so that a crash leaves the earlier ones.

    Attributes:
        file: file of the report.
        checks: rows of `verl-agent doctor`.
        modules: imported modules, with the error of those that failed.
        runs: entries of `summarize`, and the reason of each run that was skipped or failed.
    """

    file: Path
    checks: Sequence[Any] = ()
    modules: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(self) -> None:
        content = {
            "provenance": asdict(Provenance.collect()),
            "checks": [asdict(row) for row in self.checks],
            "modules": self.modules,
            "runs": self.runs,
        }
        self.file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
