"""Benchmark of a CPU run's steps against the limits of the machine: products of matrices and memory.

python -m tests.bench.roofline RUN [--step N] [--bare] [--json PATH]

RUN is the folder of a training run on a CPU whose files of tokens have all rows of a step: it was started with
`trainer.v1.sampler.sampler_kwargs.skip_uniform=false` and an `episode.record_tokens.groups` of at least
`data.train_batch_size`. Of one of its steps, the table has for rollout, log-probs, update and transfer of the weights:
operations, bytes, seconds, operations a second, and the share of the limit. The limit is the longer of two times: that
of the operations at the rate of products which this machine reaches with the phase's own shapes, and that of the bytes
at its memory bandwidth. `--bare` also lets vLLM alone answer the requests of the step, each as long as in the run.
Measure on a quiet machine, the one that the run was on.

Operations count 2 for each weight that multiplies a token, and 4 for each dimension of each head and earlier token in
attention. A rollout computes each token once, that of a prompt once for its group; the output layer counts for tokens
that were written. An update counts three times its forward pass.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig

from tests.bench.bare_engine import bare_seconds, requests
from verl_agent.config.search_path import cpu_dtype

GIGA = 1e9
REPEATS = 5
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

    def operations(self, tokens: int, pairs: int, logits: int) -> float:
        """Return the operations of a forward pass.

        Args:
            pairs: pairs of a token and an earlier one or itself in the same row.
            logits: tokens of whose successors the log-probs are needed.
        """
        return 2.0 * self.weights * tokens + float(self.attended) * pairs + 2.0 * self.head * logits


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a step.

    Attributes:
        tokens: ids of each row.
        masks: 1 for each token that the policy wrote.
        prompts: tokens of the prompt of each row.
        groups: group of each row.
    """

    tokens: Sequence[Sequence[int]]
    masks: Sequence[Sequence[int]]
    prompts: Sequence[int]
    groups: Sequence[str]

    @classmethod
    def of(cls, file: Path) -> "Rows":
        """Read the file of a step's tokens (`RUN/tokens/step_N.parquet`)."""
        table = pq.read_table(file, columns=["token_ids", "turns", "prompt_length", "group"]).to_pydict()
        masks = [[int(turn >= 0) for turn in row] for row in table["turns"]]
        return cls(table["token_ids"], masks, table["prompt_length"], table["group"])

    @property
    def written(self) -> int:
        """Number of tokens that the policy wrote."""
        return sum(map(sum, self.masks))

    @property
    def total(self) -> int:
        """Number of tokens of all rows."""
        return sum(map(len, self.tokens))

    @property
    def repeated(self) -> list[int]:
        """Lengths of the prompts of rows whose group has an earlier row, so that an engine has read them."""
        found: set[str] = set()
        return [
            length
            for length, group in zip(self.prompts, self.groups, strict=True)
            if group in found or found.add(group)  # type: ignore[func-returns-value]
        ]

    @property
    def positions(self) -> int:
        """Sum of the positions of all tokens that the policy wrote: what each of them reads from the cache."""
        return sum(at for mask in self.masks for at, written in enumerate(mask) if written)


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


def product_rate(rows: int, model: Model, dtype: torch.dtype) -> float:
    """Return the operations a second of a layer's largest products with a number of rows."""
    x, up, down = (torch.randn(*shape).to(dtype) for shape in _shapes(rows, model))
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(max(1, 4096 // rows)):
            (x @ up) @ down
        times.append((time.perf_counter() - began) / max(1, 4096 // rows))
    rate: float = 4.0 * rows * model.hidden * model.inner / min(times)
    return rate


def _shapes(rows: int, model: Model) -> list[tuple[int, int]]:
    return [(rows, model.hidden), (model.hidden, model.inner), (model.inner, model.hidden)]


def bandwidth() -> float:
    """Return the bytes a second that a copy of 512 MB reads and writes."""
    source, times = torch.ones(2**27), []
    target = torch.empty_like(source)
    for _ in range(REPEATS):
        began = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began)
    rate: float = 2 * source.numel() * 4 / min(times)
    return rate


def pairs(lengths: Sequence[int]) -> int:
    """Return the number of pairs of a token and an earlier one or itself, in rows of some lengths."""
    return sum(length * (length + 1) // 2 for length in lengths)


def phases(model: Model, rows: Rows, timing: dict[str, float], dtype: torch.dtype, updates: int) -> list[Phase]:
    """Return the phases of a step.

    Args:
        timing: seconds by name, verl's `timing_s/*`.
        updates: optimizer steps of the step.
    """
    lengths, written, size = [len(row) for row in rows.tokens], rows.written, dtype.itemsize
    forward = model.operations(rows.total, pairs(lengths), written)
    parameters, again = model.weights + model.head, rows.repeated
    writing = 2.0 * (model.weights + model.head) * written + float(model.attended) * rows.positions
    reading = forward - writing - model.operations(sum(again), pairs(again), 0)
    decoding = product_rate(len(lengths), model, dtype)
    training = product_rate(min(4096, max(64, rows.total // 8)), model, dtype)
    steps = written / len(lengths)  # an engine reads all weights in each of its steps, at best for all rows at once
    cached = size * (parameters * steps + model.cached * rows.positions)
    scored = sum(timing.get(name, 0.0) for name in ("old_log_prob", "ref"))
    passes = sum(timing.get(name, 0.0) > SHORT_S for name in ("old_log_prob", "ref"))
    optimizer = 28.0 * parameters * updates  # reads weight, gradient and two moments, and writes three, float32
    moved = (4.0 + size) * parameters  # reads the float32 weights, writes the engine's
    return [
        Phase("rollout", reading + writing, cached, reading / training + writing / decoding, timing["gen"]),
        Phase("log-probs", passes * forward, size * passes * parameters, passes * forward / training, scored),
        Phase("update", 3 * forward, optimizer, 3 * forward / training, timing["update_actor"]),
        Phase("transfer", 0.0, moved, 0.0, timing["update_weights"]),
    ]


def show(found: Sequence[Phase], memory: float, bare: float | None) -> Table:
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
    if bare is not None:
        table.add_row(
            "vLLM alone", "", "", f"{bare:.1f}", "", "", f"{bare / found[0].seconds:.0%} of the rollout's seconds"
        )
    return table


def main() -> None:
    """Print the table of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int, help="step whose tokens are kept; the last one")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    files = {int(file.stem.partition("_")[2]): file for file in (options.run / "tokens").glob("step_*.parquet")}
    step = max(files) if options.step is None else options.step
    logged: dict[str, float] = {}
    for file in sorted((options.run / "metrics").glob("*.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            if line["step"] == step and "timing_s/gen" in line["data"]:
                logged = line["data"]
    timing = {name.partition("/")[2]: value for name, value in logged.items() if name.startswith("timing_s/")}
    folder = next(options.run.glob("global_step_*/actor/huggingface"), None)
    if folder is None:
        parser.error(f"{options.run} has no checkpoint. Run it again with trainer.save_freq=1.")
    config = json.loads((options.run / "run.json").read_text())
    policy, tasks = config["actor_rollout_ref"], config["data"]["train_batch_size"]
    dtype: torch.dtype = getattr(torch, cpu_dtype())
    updates = max(1, tasks // policy["actor"]["ppo_mini_batch_size"]) * policy["actor"]["ppo_epochs"]
    model, rows, memory = Model.of(folder), Rows.of(files[step]), bandwidth()
    if len(rows.tokens) < (episodes := tasks * policy["rollout"]["n"]):
        parser.error(
            f"{files[step]} has {len(rows.tokens)} of the step's {episodes} episodes. Run it again with "
            "trainer.v1.sampler.sampler_kwargs.skip_uniform=false and episode.record_tokens.groups of at least "
            "data.train_batch_size."
        )
    found = phases(model, rows, timing, dtype, updates)
    bare = bare_seconds(folder, requests(rows.tokens, rows.masks), dtype) if options.bare else None
    console = Console()
    console.print(
        f"{options.run}, step {step}: {len(rows.tokens)} rows, {rows.total:,} tokens, {rows.written:,} written; "
        f"memory {memory / GIGA:.0f} GB/s, {os.cpu_count()} cores"
    )
    console.print(show(found, memory, bare))
    if options.json:
        options.json.write_text(json.dumps({"phases": [asdict(one) for one in found], "bare_s": bare}, indent=1))


if __name__ == "__main__":
    main()
