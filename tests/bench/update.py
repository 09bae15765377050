"""Benchmark of the update on a CPU: verl's engine against this package's, and what each part of the difference saves.

python -m tests.bench.update [--repeats 3] [--kept 6] [--tasks 16] [--parts] [--json PATH]

Both engines update SmolLM2-135M on the same rows, in turn and in one process: episodes of TextCraft as
`recipes/textcraft/scaling_inter_cpu.yaml` plays them, of which `skip_uniform` keeps some groups. CPU seconds count all
threads of this process, and vary less than wall seconds on a shared machine. Seconds are medians of the updates. Ratios
are medians and ranges of the ratios of updates in turn. Log-probs and gradients are compared with those of verl's
engine in float32.
"""

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict
from torch import Tensor
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead

from tests.bench.measurements import between, spread
from tests.bench.update_rows import played_rows
from tests.bench.update_shares import MICRO
from tests.support.engines import batch_of, gradients, new_engine, policy_loss, relative_difference
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.platform.cpu_engine import CpuEngine, CpuLanguageEngine
from verl_agent.rollout.tokens import Segment
from verl_agent.trace.provenance import write_result

LOSS = policy_loss(use_kl_loss=False)


class SingleRows(CpuLanguageEngine):
    """Engine that computes a beginning that rows share once for each of them."""

    def _build_module(self) -> Any:
        module = super()._build_module()
        self.shares = False
        return module


class Masked(SingleRows):
    """Engine that gives attention a dense mask."""

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        inputs, output_args = super().prepare_model_inputs(micro_batch)
        theirs, _ = FSDPEngineWithLMHead.prepare_model_inputs(self, micro_batch)
        return inputs | {"attention_mask": theirs["attention_mask"]}, output_args


class AllLogits(CpuEngine, FSDPEngineWithLMHead):
    """Engine that computes the logits of all tokens."""


class BrainAttention(SingleRows):
    """Engine with attention in bfloat16."""

    def _build_module(self) -> Any:
        module = super()._build_module()
        module.set_attn_implementation("sdpa")
        return module


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute the update.

    Attributes:
        name: description.
        engine: class of the engine.
        filler: tokens of a row without loss.
    """

    name: str
    engine: type[FSDPEngine]
    filler: int = 2


OLD = Variant("verl's engine, fillers of 128 tokens", FSDPEngineWithLMHead, 128)
NEW = Variant("all of it", CpuLanguageEngine)
PARTS = (
    Variant("verl's engine, short fillers", FSDPEngineWithLMHead),
    Variant("with single rows", SingleRows),
    Variant("with single rows and a dense mask", Masked),
    Variant("with the logits of all tokens", AllLogits),
    Variant("with single rows and attention in bfloat16", BrainAttention),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one variant; times are medians of the updates.

    Attributes:
        name: description of the variant.
        cpu_s: median CPU time of an update in seconds.
        wall_s: median duration of an update in seconds.
        old_cpu_s: median CPU time of `OLD` between these updates.
        old_wall_s: median duration of `OLD` between them.
        cpu_ratios: CPU time of `OLD` over that of the variant, in each repeat.
        wall_ratios: the same of durations.
        gradient_error: distance of the gradient from the float32 one, over the norm of the latter.
        log_prob_error: mean distance of log-probs from the float32 ones, in nats.
        log_prob_error_max: largest such distance.
    """

    name: str
    cpu_s: float
    wall_s: float
    old_cpu_s: float
    old_wall_s: float
    cpu_ratios: Sequence[float]
    wall_ratios: Sequence[float]
    gradient_error: float
    log_prob_error: float
    log_prob_error_max: float


@dataclass(frozen=True, slots=True)
class Exact:
    """Gradients and log-probs of the rows in float32."""

    gradients: dict[str, Tensor]
    log_probs: Tensor


def with_fillers(rows: Sequence[Segment], size: int, length: int) -> TensorDict:
    """Return the rows, filled up to `size` rows by rows of `length` tokens."""
    filler = Segment([2] * (length - 1), [2], [0], [0.0])
    return batch_of([*rows, *[filler] * (size - len(rows))], MICRO)


def log_probs(engine: FSDPEngine, rows: Sequence[Segment]) -> Tensor:
    """Return the log-probs of the tokens that the model wrote, float32, row after row."""
    padded = [*rows, *rows[: -len(rows) % 4]]
    with engine.eval_mode():
        values = engine.infer_batch(batch_of(padded))["model_output"]["log_probs"].unbind()
    written = [torch.tensor([0] * (len(row.prompt_ids) - 1) + row.response_mask + [0]).bool() for row in rows]
    return torch.cat([row[mask].float() for row, mask in zip(values, written, strict=False)])


def update(engine: FSDPEngine, data: TensorDict) -> tuple[float, float]:
    """Update once; return CPU time and duration in seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    with engine.train_mode():
        engine.train_batch(data, LOSS)
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(variant: Variant, model: Path, rows: Sequence[Segment], size: int, repeats: int, exact: Exact) -> Measured:
    """Measure a variant and `OLD` in turn."""
    engine = new_engine(variant.engine, model)
    old = new_engine(OLD.engine, model)
    data, old_data = with_fillers(rows, size, variant.filler), with_fillers(rows, size, OLD.filler)
    found, _ = gradients(engine, data, LOSS)
    distance = (log_probs(engine, rows) - exact.log_probs).abs()
    times = [(*update(engine, data), *update(old, old_data)) for _ in range(repeats)]
    cpu_s, wall_s, old_cpu_s, old_wall_s = (median(column) for column in zip(*times, strict=True))
    cpu_ratios, wall_ratios = ([one[2 + index] / one[index] for one in times] for index in (0, 1))
    error = relative_difference(found, exact.gradients)
    return Measured(
        variant.name,
        cpu_s,
        wall_s,
        old_cpu_s,
        old_wall_s,
        cpu_ratios,
        wall_ratios,
        error,
        float(distance.mean()),
        float(distance.max()),
    )


def table(measured: Sequence[Measured]) -> Table:
    """Return a table of the measurements."""
    made = Table(
        "variant",
        "CPU s",
        "wall s",
        "verl's CPU s",
        "verl's wall s",
        "CPU ratio",
        "wall ratio",
        "gradient error",
        "log-prob error",
    )
    for one in measured:
        made.add_row(
            one.name,
            f"{one.cpu_s:.1f}",
            f"{one.wall_s:.1f}",
            f"{one.old_cpu_s:.1f}",
            f"{one.old_wall_s:.1f}",
            spread(one.cpu_ratios),
            spread(one.wall_ratios),
            f"{one.gradient_error:.3f}",
            f"{one.log_prob_error:.4f} (max {one.log_prob_error_max:.2f})",
        )
    return made


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.update", description="Measure the update on a CPU.")
    parser.add_argument("--repeats", type=between(int, 1), default=3, help="updates of each variant (default 3)")
    parser.add_argument(
        "--tasks", type=between(int, 1), default=16, help="groups of four episodes of a step (default 16)"
    )
    parser.add_argument("--kept", type=between(int, 1), default=6, help="groups that skip_uniform keeps (default 6)")
    parser.add_argument("--parts", action="store_true", help="measure variants that lack one part each, too")
    parser.add_argument("--model", type=Path, help="folder of the model (default SmolLM2-135M-Instruct)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the numbers and their provenance")
    options = parser.parse_args(arguments)
    if options.kept > options.tasks:
        parser.error(f"--kept {options.kept} is more than --tasks {options.tasks}. Lower it, or raise --tasks.")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the numbers to a file if `--json` is set."""
    options, console = parse(arguments), Console()
    model = options.model or Path(prepare_smollm2())
    rows, size = played_rows(model, options.kept), 4 * options.tasks
    tokens = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
    console.print(f"{len(rows)} rows of {sum(tokens)} tokens, filled up to {size} rows", highlight=False)
    reference = new_engine(FSDPEngineWithLMHead, model, "float32")
    found, _ = gradients(reference, with_fillers(rows, size, OLD.filler), LOSS)
    exact = Exact(found, log_probs(reference, rows))
    del reference
    measured = []
    for variant in (NEW, OLD, *(PARTS if options.parts else ())):
        gc.collect()
        measured.append(measure(variant, model, rows, size, options.repeats, exact))
        console.print(f"{variant.name}: {spread(measured[-1].cpu_ratios)} of CPU time", highlight=False)
    console.print(table(measured))
    if options.json:
        write_result(options.json, 1, {"measured": [asdict(one) for one in measured]})


if __name__ == "__main__":
    main()
