"""Benchmark of a CPU run's steps against the limits of the machine: products of matrices and memory.

python -m tests.bench.roofline RUN [--step N] [--bare] [--json PATH]

RUN is the folder of a training run on a CPU (`runs/NAME`). Of one of its steps, the table has for rollout, log-probs,
update and transfer of the weights: operations, bytes, seconds, operations a second, and the share of the limit, which
is the longer of two times: the operations at the rate of products that this machine reaches with the phase's own
shapes, and the bytes at its memory bandwidth. `--bare` also lets vLLM alone answer the requests of the step, each as
long as in the run. Measure on a quiet machine, the one that the run was on.

Operations count each token of a conversation once, as an engine with a cache of prefixes computes them: 2 for each
weight that multiplies a token, and 4 for each dimension of each head and earlier token in attention. The output layer
counts where logits are needed. An update counts three times its forward pass.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig

from verl_agent.platform.worker_environment import SPIN_ROUNDS

GIGA = 1e9
REPEATS = 5


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
    """Rows of a step: tokens and, at each, 1 where the policy wrote it.

    Attributes:
        groups: group of each row; rows of a group share their prompt.
        turns: turn of each token of each row, 0 in prompts.
    """

    tokens: Sequence[Sequence[int]]
    masks: Sequence[Sequence[int]]
    prompts: Sequence[int]
    groups: Sequence[str]
    turns: Sequence[Sequence[int]]

    @classmethod
    def of(cls, file: Path) -> "Rows":
        """Read the file of a step's tokens (`RUN/tokens/step_N.parquet`)."""
        names = ("token_ids", "loss_mask", "prompt_length", "group", "turns")
        return cls(*(pq.read_table(file, columns=[name])[name].to_pylist() for name in names))

    @property
    def written(self) -> int:
        """Number of tokens that the policy wrote."""
        return sum(map(sum, self.masks))

    @property
    def total(self) -> int:
        """Number of tokens of all rows."""
        return sum(map(len, self.tokens))

    @property
    def distinct(self) -> int:
        """Number of tokens that an engine computes: those of a prompt once for its group."""
        shared = dict(zip(self.groups, self.prompts, strict=True))
        return self.total - sum(self.prompts) + sum(shared.values())

    @property
    def pairs(self) -> int:
        """Number of pairs of a token and an earlier one or itself, over all rows."""
        return sum(len(row) * (len(row) + 1) // 2 for row in self.tokens)

    def replies(self) -> list[list[tuple[list[int], int]]]:
        """Return for each row its requests in order: the tokens that the engine read, and the number that it wrote."""
        found = []
        for ids, mask in zip(self.tokens, self.masks, strict=True):
            starts = [at for at in range(1, len(mask)) if mask[at] and not mask[at - 1]]
            ends = [next((at for at in range(start, len(mask)) if not mask[at]), len(mask)) for start in starts]
            found.append([(list(ids[:start]), end - start) for start, end in zip(starts, ends, strict=True)])
        return found


@dataclass(frozen=True, slots=True)
class Phase:
    """Work and time of a phase of a step.

    Attributes:
        operations: floating-point operations.
        moved: bytes that have to be read or written once.
        rate: operations a second that products of the phase's shapes reach; 0 without products.
        seconds: time in the run.
    """

    name: str
    operations: float
    moved: float
    rate: float
    seconds: float

    def limit_s(self, bandwidth: float) -> float:
        """Return the seconds that the machine needs at least."""
        return max(self.operations / self.rate if self.rate else 0.0, self.moved / bandwidth)


def product_rate(rows: int, model: Model, dtype: torch.dtype) -> float:
    """Return the operations a second of a layer's largest products with a number of rows."""
    x, up, down = (torch.randn(*shape).to(dtype) for shape in _shapes(rows, model))
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(max(1, 4096 // rows)):
            (x @ up) @ down
        times.append((time.perf_counter() - began) / max(1, 4096 // rows))
    return 4.0 * rows * model.hidden * model.inner / min(times)


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
    return 2 * source.numel() * 4 / min(times)


def phases(model: Model, rows: Rows, timing: dict[str, float], passes: int) -> list[Phase]:
    """Return the phases of a step.

    Args:
        timing: seconds by name, verl's `timing_s/*`.
        passes: forward passes that compute log-probs before the update.
    """
    forward = model.operations(rows.total, rows.pairs, rows.written)
    size, parameters = len(rows.tokens), model.weights + model.head
    steps = rows.written / size  # an engine reads all weights in each of its steps, at best for all rows at once
    read = 2.0 * (parameters * steps + model.cached * sum(len(row) * sum(mask) for row, mask in _pairs(rows)) / 2)
    decoding = product_rate(size, model, torch.bfloat16)
    training = product_rate(min(4096, max(64, rows.total // 8)), model, torch.bfloat16)
    rollout = model.operations(rows.distinct, rows.pairs, rows.written)
    return [
        Phase("rollout", rollout, read, decoding, timing["gen"]),
        Phase("log-probs", passes * forward, passes * 2.0 * parameters, training, timing.get("old_log_prob", 0.0)),
        Phase("update", 3 * forward, 28.0 * parameters, training, timing["update_actor"]),
        Phase("transfer", 0.0, 6.0 * parameters, 0.0, timing["update_weights"]),
    ]


def _pairs(rows: Rows) -> list[tuple[Sequence[int], Sequence[int]]]:
    return list(zip(rows.tokens, rows.masks, strict=True))


def bare_seconds(folder: Path, rows: Rows) -> float:
    """Return the seconds in which vLLM alone answers the requests of a step, all rows at once, each turn by turn."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_ROUNDS))
    from vllm import LLM, SamplingParams

    longest = max(map(len, rows.tokens)) + 1
    options = {"dtype": "bfloat16", "max_model_len": longest, "max_num_seqs": len(rows.tokens)}
    engine: Any = LLM(str(folder), enable_prefix_caching=True, **options).llm_engine

    def ask(row: int, turn: int) -> None:
        read, length = left[row][turn]
        params = SamplingParams(max_tokens=length, min_tokens=length, ignore_eos=True, logprobs=0)
        engine.add_request(f"{row}-{turn}", {"prompt_token_ids": read}, params)

    seconds = 0.0
    for _ in range(2):  # the first one compiles
        left, began = rows.replies(), time.perf_counter()
        engine.reset_prefix_cache()
        for row in range(len(left)):
            if left[row]:
                ask(row, 0)
        while engine.has_unfinished_requests():
            for output in engine.step():
                row, turn = map(int, output.request_id.split("-")[:2])
                if output.finished and turn + 1 < len(left[row]):
                    ask(row, turn + 1)
        seconds = time.perf_counter() - began
    return seconds


def show(found: Sequence[Phase], memory: float, bare: float | None) -> Table:
    """Return the table of the phases."""
    table = Table("phase", "GFLOP", "GB", "seconds", "GFLOP/s", "limit, GFLOP/s", "share of the limit")
    for one in found:
        if one.seconds < 0.1:
            continue
        done = f"{one.operations / one.seconds / GIGA:.0f}" if one.operations else ""
        most = f"{one.rate / GIGA:.0f}" if one.rate else ""
        share = f"{one.limit_s(memory) / one.seconds:.0%}"
        table.add_row(
            one.name, f"{one.operations / GIGA:.0f}", f"{one.moved / GIGA:.1f}", f"{one.seconds:.1f}", done, most, share
        )
    if bare is not None:
        ratio = f"{bare / found[0].seconds:.0%} of the run's seconds"
        table.add_row("vLLM alone", "", "", f"{bare:.1f}", "", "", ratio)
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
    folder = next(options.run.glob("global_step_*/actor/huggingface"))
    model, rows, memory = Model.of(folder), Rows.of(files[step]), bandwidth()
    found = phases(model, rows, timing, passes=1 if timing.get("old_log_prob", 0.0) > 1 else 0)
    bare = bare_seconds(folder, rows) if options.bare else None
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
