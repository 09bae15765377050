"""Benchmark of a CPU run's steps against the limits of the machine: products of matrices and memory.

python -m tests.bench.roofline RUN [--step N] [--bare] [--theirs] [--json PATH]

RUN is the folder of a training run on a CPU whose files of tokens have all rows of a step: it was started with
`trainer.v1.sampler.sampler_kwargs.skip_uniform=false` and an `episode.record_tokens.groups` of at least
`data.train_batch_size`. Of one of its steps, the table has for rollout, log-probs, update and transfer of the weights:
operations, bytes, seconds, rate, limit, and the share: rate over limit. The limit is the slower of two: the rate that
this machine reaches with products of the phase's own numbers of tokens (each weighted by its operations) and the run's
dtype, or its memory bandwidth. Measure on a quiet machine, the one that the run was on.

Rows with a dash are measured alone in this process. `--bare` lets vLLM answer the requests of the step, each as long as
in the run. `--theirs` lets this package's engine and verl's own update the same rows in turn. verl's engine computes a
beginning that rows share once for each row, so that its row has seconds and no operations.

Operations count 2 for each weight that multiplies a token, and 4 for each dimension of each head and earlier token in
attention. A rollout computes each token once, that of a prompt once for its group; the output layer counts for tokens
that were written. Log-probs and update compute a beginning that rows of a micro-batch share once, as
`CpuLanguageEngine` does. An update counts three times its forward pass, in each of its epochs.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig
from verl.utils import tensordict_utils as tu

from tests.bench.bare_engine import bare_seconds
from tests.bench.machine_limits import Rates, bandwidths, processor, product_rates, rounded
from tests.bench.recorded_step import Batches, Rows, Step, UnusableRunError, Work, requests
from tests.support.engines import batch_of, new_engine
from verl_agent.config.search_path import cpu_dtype
from verl_agent.platform.log_prob_head import targets
from verl_agent.platform.micro_batches import split_micro_batches
from verl_agent.platform.token_tree import TokenTree
from verl_agent.rollout.tokens import Segment
from verl_agent.trace.provenance import git_commit, write_result

GIGA = 1e9
WIDTH = 120
"""Least columns of the output, so that no cell of the table is split."""
LEGEND = (
    "timed: `trainer` is the whole phase in the run, with the transfer of data between processes; `engine` is vLLM in "
    "this process, without agent loop and environments; `train_batch` is the calls of an engine in this process."
)
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
        timed: description of what `seconds` include.
        products: floating-point operations by the number of tokens of their products, see `rounded`.
        moved: bytes that have to be read or written once.
        seconds: time in the run, or in this process.
    """

    name: str
    timed: str
    products: Mapping[int, float]
    moved: float
    seconds: float

    @property
    def operations(self) -> float:
        """Floating-point operations."""
        return sum(self.products.values())

    def rate_and_limit(self, rates: Rates, bandwidth: float) -> tuple[float, float, str]:
        """Return rate, limit and their unit: operations a second, or bytes a second if memory limits the phase."""
        products_s = sum(operations / rates[tokens] for tokens, operations in self.products.items())
        if products_s * bandwidth < self.moved:
            return self.moved / self.seconds, bandwidth, "B/s"
        return self.operations / self.seconds, self.operations / products_s if products_s else 0.0, "FLOP/s"


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


def phases(model: Model, rows: Rows, timing: Mapping[str, float], dtype: torch.dtype, batches: Batches) -> list[Phase]:
    """Return the phases of a step.

    Args:
        timing: seconds by name, verl's `timing_s/*`.
    """

    def products(parts: Iterable[tuple[float, float]]) -> dict[int, float]:
        found: dict[int, float] = {}
        for tokens, operations in parts:
            found[rounded(tokens)] = found.get(rounded(tokens), 0.0) + operations
        return found

    def forward(found: Sequence[Work], times: int) -> dict[int, float]:
        return products((work.tokens, times * model.operations(work)) for work in found)

    written, size, parameters = rows.written, dtype.itemsize, model.weights + model.head
    writing = 2.0 * parameters * written + float(model.attended) * (rows.positions + written)
    reading = model.operations(rows.read)
    playing = products([(rows.read.tokens / rows.turns, reading), (len(rows.tokens), writing)])
    steps = written / len(rows.tokens)  # an engine reads all weights in each of its steps, at best for all rows at once
    cached = size * (parameters * steps + model.cached * rows.positions)
    scored = sum(timing.get(name, 0.0) for name in ("old_log_prob", "ref"))
    passes = sum(timing.get(name, 0.0) > SHORT_S for name in ("old_log_prob", "ref"))
    scored_work = micro_batches(segments(rows), batches.scored, True) if passes else []
    minis = batches.mini_batches(segments(rows))
    updated_work = [work for mini in minis for work in micro_batches(mini, batches.micro, False)]
    updates = batches.epochs * len(minis)
    optimizer = 28.0 * parameters * updates  # reads weight, gradient and two moments, and writes three, float32
    moved = (4.0 + size) * parameters  # reads the float32 weights, writes the engine's
    whole = "trainer"
    return [
        Phase("rollout", whole, playing, cached, timing["gen"]),
        Phase("log-probs", whole, forward(scored_work, passes), size * passes * parameters, scored),
        Phase("update", whole, forward(updated_work, 3 * batches.epochs), optimizer, timing["update_actor"]),
        Phase("transfer", whole, {}, moved, timing["update_weights"]),
    ]


def bare_updates(phase: Phase, folder: Path, rows: Sequence[Segment], batches: Batches) -> list[Phase]:
    """Return rows of the same update by this package's engine and by verl's, which take turns with each mini-batch."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from tests.bench.update import update
    from verl_agent.platform.cpu_engine import CpuLanguageEngine

    engines = [new_engine(kind, folder, cpu_dtype()) for kind in (CpuLanguageEngine, FSDPEngineWithLMHead)]
    seconds = [0.0 for _ in engines]
    for engine in engines:
        update(engine, batch_of(rows[: batches.micro], batches.micro))  # allocates the optimizer's state
    for mini in batches.mini_batches(rows) * batches.epochs:
        for place, engine in enumerate(engines):
            seconds[place] += update(engine, batch_of(mini, batches.micro))[1]
    return [
        replace(phase, name="- this engine", timed="train_batch", seconds=seconds[0]),
        Phase("- verl's engine", "train_batch", {}, 0.0, seconds[1]),
    ]


def show(found: Sequence[Phase], rates: Rates, bandwidth: float) -> Table:
    """Return the table of the phases."""
    table = Table("phase", "timed", "GFLOP", "GB", "seconds", "rate", "limit", "share")
    for one in found:
        if one.seconds < SHORT_S:
            continue
        rate, limit, unit = one.rate_and_limit(rates, bandwidth)
        work = [f"{number / GIGA:,.1f}" for number in (one.operations, one.moved)]
        shares = [f"{number / GIGA:,.1f} G{unit}" for number in (rate, limit)] if limit else []
        table.add_row(
            one.name,
            one.timed,
            *(work if limit else ("", "")),
            f"{one.seconds:,.1f}",
            *([*shares, f"{rate / limit:.0%}"] if limit else []),
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
    parser.add_argument("--theirs", action="store_true", help="measure the update of both engines alone (minutes)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    try:
        step = Step.of(options.run, options.step)
    except UnusableRunError as error:
        parser.error(str(error))
    dtype: torch.dtype = getattr(torch, cpu_dtype())
    model, rows, console = Model.of(step.model), step.rows, Console(highlight=False, width=max(WIDTH, Console().width))
    torch.set_num_threads(step.threads)
    cpu = processor(Path("/proc/cpuinfo").read_text())
    console.print(
        *(f"CPU {name} {value}" for name, value in cpu.items()), f"commit {git_commit(Path(__file__).parent)}", sep=", "
    )
    found = phases(model, rows, step.timing, dtype, step.batches)
    memory = bandwidths()
    sizes = sorted({tokens for one in found for tokens in one.products})
    rates = product_rates(sizes, model.hidden, model.inner, (torch.bfloat16, torch.float32))
    console.print(
        f"{options.run}, step {step.number}: {len(rows.tokens)} rows, {rows.total:,} tokens, {rows.written:,} written; "
        f"{step.threads} threads"
    )
    console.print(", ".join(f"{name} {rate / GIGA:.0f} GB/s" for name, rate in memory.items()))
    by_name = {str(kind).removeprefix("torch."): by_tokens for kind, by_tokens in rates.items()}
    for name, by_tokens in by_name.items():
        shown = ", ".join(f"{tokens}: {rate / GIGA:.0f}" for tokens, rate in by_tokens.items())
        console.print(f"GFLOP/s of {name} products by tokens{' (the limits)' if name == cpu_dtype() else ''}: {shown}")
    if options.bare:
        seconds, threads = bare_seconds(step.model, requests(rows.tokens, rows.masks), dtype, step.threads)
        found.insert(1, replace(found[0], name="- vLLM", timed="engine", seconds=seconds))
        console.print(f"threads: {threads} in vLLM alone")
    if options.theirs:
        place = next(place for place, one in enumerate(found) if one.name == "update")
        found[place + 1 : place + 1] = bare_updates(found[place], step.model, segments(rows), step.batches)
        ratio = found[place + 2].seconds / found[place + 1].seconds
        console.print(f"verl's engine takes {ratio:.2f} times the seconds of this package's, train_batch alone")
    console.print(LEGEND)
    console.print(show(found, rates[dtype], max(memory.values())))
    if options.json:
        numbers = {
            "cpu": cpu,
            "phases": [{**asdict(one), "operations": one.operations} for one in found],
            "bandwidth": memory,
            "rates": by_name,
        }
        write_result(options.json, 2, numbers)


if __name__ == "__main__":
    main()
