"""Benchmark of a CPU run's steps against the limits of the machine: products of matrices and memory.

python -m tests.bench.roofline RUN [--step N] [--bare] [--theirs] [--json PATH]

RUN is the folder of a training run on a CPU whose files of tokens have all rows of a step: it was started with
`trainer.v1.sampler.sampler_kwargs.skip_uniform=false` and an `episode.record_tokens.groups` of at least
`data.train_batch_size`. Of one of its steps, the table has for rollout, log-probs, update and transfer of the weights:
operations, bytes, seconds, operations a second, and the share of the limit. The limit is the longer of two times: that
of the operations at the rates which this machine reaches with products of the phase's own shapes and the run's dtype,
and that of the bytes at its memory bandwidth. `--bare` also lets vLLM alone answer the requests of the step, each as
long as in the run, and `--theirs` lets verl's own engine update the same rows. Their rows have the work of the phase
above them, so that shares compare. Measure on a quiet machine, the one that the run was on.

Operations count 2 for each weight that multiplies a token, and 4 for each dimension of each head and earlier token in
attention. A rollout computes each token once, that of a prompt once for its group; the output layer counts for tokens
that were written. Log-probs and update compute a beginning that rows of a micro-batch share once, as
`CpuLanguageEngine` does. An update counts three times its forward pass, in each of its epochs.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig
from verl.utils import tensordict_utils as tu

from tests.bench.bare_engine import bare_seconds
from tests.bench.recorded_step import Batches, Rows, Step, UnusableRunError, Work, requests
from tests.support.engines import batch_of, new_engine
from verl_agent.config.search_path import cpu_dtype
from verl_agent.platform.log_prob_head import targets
from verl_agent.platform.micro_batches import split_micro_batches
from verl_agent.platform.token_tree import TokenTree
from verl_agent.rollout.tokens import Segment

GIGA = 1e9
REPEATS = 5
ROUNDED = 32
"""Multiple to which the tokens of a product are rounded, so that few products are measured."""
SHORT_S = 0.1
"""Seconds below which a phase is not shown: the run has skipped it."""


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a Llama or Qwen model that decide its work.

    Attributes:
        weights: numbers in the matrices of all layers, without embedding and output layer.
        head: numbers in the output layer.
        attended: operations of attention for a token and an earlier one, over all layers.
        cached: numbers that a token leaves in the cache of keys and values.
    """

    hidden: int
    inner: int
    weights: int
    head: int
    attended: int
    cached: int

    @classmethod
    def of(cls, folder: Path) -> "Model":
        """Read the sizes of a model's folder."""
        config = AutoConfig.from_pretrained(folder)
        hidden, inner, layers, heads = (
            getattr(config, name)
            for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        )
        size = getattr(config, "head_dim", None) or hidden // heads
        queries, keys = heads * size, config.num_key_value_heads * size
        layer = 2 * hidden * (queries + keys) + 3 * hidden * inner
        return cls(hidden, inner, layers * layer, hidden * config.vocab_size, 4 * layers * queries, 2 * layers * keys)

    def operations(self, work: "Work") -> float:
        """Return the operations of a forward pass."""
        return 2.0 * self.weights * work.tokens + float(self.attended) * work.pairs + 2.0 * self.head * work.logits


@dataclass(frozen=True, slots=True)
class Phase:
    """Work and time of a phase of a step.

    Attributes:
        operations: floating-point operations.
        moved: bytes that have to be read or written once.
        products_s: seconds of the operations at the rates that products of the phase's shapes reach.
        seconds: time in the run.
    """

    name: str
    operations: float
    moved: float
    products_s: float
    seconds: float

    def limit_s(self, bandwidth: float) -> float:
        """Return the seconds that the machine needs at least."""
        return max(self.products_s, self.moved / bandwidth)


def segments(rows: Rows) -> list[Segment]:
    """Return rows as the trainer gets them."""
    return [
        Segment(list(ids[:prompt]), list(ids[prompt:]), list(mask[prompt:]), None)
        for ids, mask, prompt in zip(rows.tokens, rows.masks, rows.prompts, strict=True)
    ]


def micro_batches(rows: Sequence[Segment], size: int, keep_all: bool) -> list[Work]:
    """Return the work of a forward pass of each micro-batch, as `CpuLanguageEngine` computes it.

    Args:
        size: longest rows of which a micro-batch has at most as many tokens.
        keep_all: False leaves out rows without loss.
    """
    data = batch_of(rows, size)
    found = []
    for group in split_micro_batches(data, True, keep_all):
        batch = tu.index_select_tensor_dict(data, group)
        tree = TokenTree.of(batch["input_ids"].unbind())
        chosen, _ = targets(batch, {"temperature": torch.ones(len(group))}, tree.places_T)
        found.append(Work(len(tree.ids_U), int((tree.depths_U + 1).sum()), len(chosen.places_N)))
    return found


@cache
def product_rate(rows: int, model: Model, dtype: torch.dtype) -> float:
    """Return the operations a second of a layer's largest products with a number of rows."""
    shapes = (rows, model.hidden), (model.hidden, model.inner), (model.inner, model.hidden)
    x, up, down = (torch.randn(*shape).to(dtype) for shape in shapes)
    times = max(1, 4096 // rows)

    def multiply() -> None:
        for _ in range(times):
            (x @ up) @ down

    return 4.0 * rows * model.hidden * model.inner * times / shortest(multiply)


def shortest(action: Callable[[], Any]) -> float:
    """Return the least seconds of some calls."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def bandwidths() -> dict[str, float]:
    """Return the bytes a second of actions on 512 MB of float32: a copy reads and writes, the others only read."""
    source = torch.ones(2**14, 2**13)
    target, vector = torch.empty_like(source), torch.ones(2**13)
    size = source.numel() * source.itemsize
    return {
        "copy": 2 * size / shortest(lambda: target.copy_(source)),
        "sum": size / shortest(source.sum),
        "matrix times vector": size / shortest(lambda: source @ vector),
    }


def phases(model: Model, rows: Rows, timing: dict[str, float], dtype: torch.dtype, batches: Batches) -> list[Phase]:
    """Return the phases of a step.

    Args:
        timing: seconds by name, verl's `timing_s/*`.
    """

    def rate(tokens: float) -> float:
        return product_rate(round(tokens / ROUNDED) * ROUNDED or max(1, round(tokens)), model, dtype)

    def forward(found: Sequence[Work]) -> tuple[float, float]:
        operations = [model.operations(work) for work in found]
        return sum(operations), sum(one / rate(work.tokens) for one, work in zip(operations, found, strict=True))

    written, size, parameters = rows.written, dtype.itemsize, model.weights + model.head
    writing = 2.0 * parameters * written + float(model.attended) * (rows.positions + written)
    reading = model.operations(rows.read)
    rollout_s = reading / rate(rows.read.tokens / rows.turns) + writing / rate(len(rows.tokens))
    steps = written / len(rows.tokens)  # an engine reads all weights in each of its steps, at best for all rows at once
    cached = size * (parameters * steps + model.cached * rows.positions)
    scored = sum(timing.get(name, 0.0) for name in ("old_log_prob", "ref"))
    passes = sum(timing.get(name, 0.0) > SHORT_S for name in ("old_log_prob", "ref"))
    scoring, scoring_s = forward(micro_batches(segments(rows), batches.scored, True)) if passes else (0.0, 0.0)
    minis = batches.mini_batches(segments(rows))
    updating, updating_s = forward([work for mini in minis for work in micro_batches(mini, batches.micro, False)])
    updates = batches.epochs * len(minis)
    optimizer = 28.0 * parameters * updates  # reads weight, gradient and two moments, and writes three, float32
    moved = (4.0 + size) * parameters  # reads the float32 weights, writes the engine's
    times = 3 * batches.epochs
    return [
        Phase("rollout", reading + writing, cached, rollout_s, timing["gen"]),
        Phase("log-probs", passes * scoring, size * passes * parameters, passes * scoring_s, scored),
        Phase("update", times * updating, optimizer, times * updating_s, timing["update_actor"]),
        Phase("transfer", 0.0, moved, 0.0, timing["update_weights"]),
    ]


def their_seconds(folder: Path, rows: Sequence[Segment], batches: Batches) -> float:
    """Return the seconds of the same update by verl's engine."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from tests.bench.update import update

    engine = new_engine(FSDPEngineWithLMHead, folder, cpu_dtype())
    update(engine, batch_of(rows[: batches.micro], batches.micro))  # allocates the optimizer's state
    data = [batch_of(mini, batches.micro) for mini in batches.mini_batches(rows)]
    return sum(update(engine, mini)[1] for _ in range(batches.epochs) for mini in data)


def show(found: Sequence[Phase], memory: float) -> Table:
    """Return the table of the phases."""
    table = Table("phase", "GFLOP", "GB", "seconds", "GFLOP/s", "limit, s", "share of the limit")
    for one in found:
        if one.seconds < SHORT_S:
            continue
        done = f"{one.operations / one.seconds / GIGA:.0f}" if one.operations else ""
        limit = one.limit_s(memory)
        numbers = (one.operations / GIGA, one.moved / GIGA, one.seconds)
        table.add_row(
            one.name, *(f"{number:,.1f}" for number in numbers), done, f"{limit:.1f}", f"{limit / one.seconds:.0%}"
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a step."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.roofline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int, help="step whose tokens are kept; the last one")
    parser.add_argument("--bare", action="store_true", help="measure vLLM alone (a minute)")
    parser.add_argument("--theirs", action="store_true", help="measure the update of verl's own engine (minutes)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    try:
        step = Step.of(options.run, options.step)
    except UnusableRunError as error:
        parser.error(str(error))
    dtype: torch.dtype = getattr(torch, cpu_dtype())
    model, rows, console = Model.of(step.model), step.rows, Console()
    memory = bandwidths()
    found = phases(model, rows, step.timing, dtype, step.batches)
    console.print(
        f"{options.run}, step {step.number}: {len(rows.tokens)} rows, {rows.total:,} tokens, {rows.written:,} written; "
        f"threads: {step.threads} in the run, {torch.get_num_threads()} here"
    )
    console.print(", ".join(f"{name} {rate / GIGA:.0f} GB/s" for name, rate in memory.items()))
    sizes = [work.tokens for work in micro_batches(segments(rows), step.batches.micro, False)]
    rates = {
        str(kind).removeprefix("torch."): {
            tokens: product_rate(tokens, model, kind) / GIGA for tokens in (len(rows.tokens), round(median(sizes)))
        }
        for kind in (torch.bfloat16, torch.float32)
    }
    for kind, by_tokens in rates.items():
        shown = ", ".join(f"{rate:.0f} GFLOP/s with {tokens} tokens" for tokens, rate in by_tokens.items())
        console.print(f"products of {kind}{' (the limit)' if kind == cpu_dtype() else ''}: {shown}")
    if options.bare:
        seconds, threads = bare_seconds(step.model, requests(rows.tokens, rows.masks), dtype)
        found.insert(1, replace(found[0], name="- vLLM alone", seconds=seconds))
        console.print(f"threads: {threads} in vLLM alone")
    if options.theirs:
        place = next(place for place, one in enumerate(found) if one.name == "update")
        seconds = their_seconds(step.model, segments(rows), step.batches)
        found.insert(place + 1, replace(found[place], name="- verl's own update", seconds=seconds))
    console.print(show(found, max(memory.values())))
    if options.json:
        numbers = {"phases": [asdict(one) for one in found], "bandwidth": memory, "gflop_s": rates}
        options.json.write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
