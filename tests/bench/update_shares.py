"""Benchmark of the update on a CPU by what rows share: single rows against trees of tokens, at equal memory.

python -m tests.bench.update_shares [--repeats 3] [--length 256] [--rows 8] [--groups 2 4 8] [--shares 0 0.5 0.75]
    [--played 6] [--json PATH]

One engine with SmolLM2-135M updates the same rows both ways, in turn and in one process. A group's rows share a prompt
of a part of their length, and nothing behind it. `--played` measures TextCraft's rows of `tests.bench.update`, too.
Seconds are medians of the updates. Ratios are medians and ranges of the ratios of updates in turn. CPU seconds count
all threads of this process.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from tests.bench.measurements import between, spread
from tests.bench.update_rows import played_rows
from tests.support.engines import batch_of, new_engine, policy_loss
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.platform.cpu_engine import CpuLanguageEngine
from verl_agent.platform.micro_batches import split_micro_batches
from verl_agent.platform.token_tree import TokenTree
from verl_agent.rollout.tokens import Segment
from verl_agent.trace.provenance import write_result

MICRO = 2
"""Rows of a micro-batch, as in verl_agent/config/cpu.yaml."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one kind of batch; each pair has single rows first, and trees second.

    Attributes:
        name: description of the rows.
        tokens: tokens that are computed.
        cpu_s: median CPU time of an update in seconds.
        wall_s: median duration of an update in seconds.
        peak_mb: median of the largest memory of the process during an update in MB.
        cpu_ratios: CPU time of single rows over that of trees, in each repeat.
        wall_ratios: the same of durations.
    """

    name: str
    tokens: tuple[int, int]
    cpu_s: tuple[float, float]
    wall_s: tuple[float, float]
    peak_mb: tuple[float, float]
    cpu_ratios: Sequence[float]
    wall_ratios: Sequence[float]


def made_rows(rows: int, length: int, group: int, share: float) -> list[Segment]:
    """Return rows of random tokens; `group` of them share the first `share` of their length, their prompt."""
    generator = torch.Generator().manual_seed(0)
    prompt_length = max(1, int(length * share))
    made = []
    for number in range(rows):
        if number % group == 0:
            prompt = torch.randint(5, 40_000, (prompt_length,), generator=generator).tolist()
        response = torch.randint(5, 40_000, (length - prompt_length,), generator=generator).tolist()
        made.append(Segment(prompt, response, [1] * len(response), [0.0] * len(response)))
    return made


def computed(rows: Sequence[Segment]) -> tuple[int, int]:
    """Return the tokens of the padded micro-batches of single rows, and those of their trees."""
    tokens = [torch.tensor(row.prompt_ids + row.response_ids) for row in rows]
    data = batch_of(rows, MICRO)
    single = sum(
        len(group) * max(len(tokens[row]) for row in group) for group in split_micro_batches(data, False, keep_all=True)
    )
    trees = [TokenTree.of([tokens[row] for row in group]) for group in split_micro_batches(data, True, keep_all=True)]
    return single, sum(len(tree.ids_U) for tree in trees)


def update(engine: CpuLanguageEngine, rows: Sequence[Segment]) -> tuple[float, float, float]:
    """Update once; return CPU time and duration in seconds, and the peak of memory in MB."""
    data, loss = batch_of(rows, MICRO), policy_loss(use_kl_loss=False)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    cpu, wall = time.process_time(), time.perf_counter()
    with engine.train_mode():
        engine.train_batch(data, loss)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return cpu, wall, int(status["VmHWM"].split()[0]) / 1024


def measure(engine: CpuLanguageEngine, name: str, rows: Sequence[Segment], repeats: int) -> Measured:
    """Measure both ways in turn."""
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    for _ in range(repeats):
        for shares, values in found.items():
            engine.shares = shares
            values.append(update(engine, rows))
    single, tree = ([median(column) for column in zip(*found[shares], strict=True)] for shares in (False, True))
    cpu, wall, peak = zip(single, tree, strict=True)
    both = list(zip(found[False], found[True], strict=True))
    ratios = [[one[index] / other[index] for one, other in both] for index in (0, 1)]
    return Measured(name, computed(rows), cpu, wall, peak, *ratios)


def table(measured: Sequence[Measured]) -> Table:
    """Return a table of the measurements."""
    made = Table("rows", "tokens", "ratio", "CPU s", "CPU ratio", "wall s", "wall ratio", "peak MB")
    for one in measured:
        cells = [one.name, f"{one.tokens[0]} / {one.tokens[1]}", f"{one.tokens[0] / one.tokens[1]:.2f}"]
        for pair, ratios in ((one.cpu_s, one.cpu_ratios), (one.wall_s, one.wall_ratios)):
            cells += [f"{pair[0]:.1f} / {pair[1]:.1f}", spread(ratios)]
        made.add_row(*cells, f"{one.peak_mb[0]:.0f} / {one.peak_mb[1]:.0f}")
    return made


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.update_shares", description="Measure shared prompts.")
    parser.add_argument("--repeats", type=between(int, 1), default=3, help="updates of each kind (default 3)")
    parser.add_argument("--length", type=between(int, 2), default=256, help="tokens of a row (default 256)")
    parser.add_argument("--rows", type=between(int, 1), default=8, help="rows of an update (default 8)")
    parser.add_argument(
        "--groups", type=between(int, 1), nargs="+", default=[2, 4, 8], help="sizes of groups (default 2 4 8)"
    )
    parser.add_argument(
        "--shares", type=between(float, 0, 1), nargs="*", default=[0.0, 0.5, 0.75], help="parts of prompts"
    )
    parser.add_argument(
        "--played", type=between(int, 0), default=6, help="groups of TextCraft (default 6; 0 leaves them out)"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the numbers and their provenance")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the numbers to a file if `--json` is set."""
    options, console = parse(arguments), Console()
    model = Path(prepare_smollm2())
    engine = new_engine(CpuLanguageEngine, model)
    update(engine, made_rows(2, 32, 2, 0.5))  # the first update allocates the optimizer's state
    kinds = {
        f"{group} rows, prompt {share:.0%}": made_rows(options.rows, options.length, group, share)
        for share in options.shares
        for group in (options.groups if share else options.groups[:1])
    }
    if options.played:
        kinds["TextCraft, 4 rows a task"] = played_rows(model, options.played)
    measured = []
    for name, rows in kinds.items():
        measured.append(measure(engine, name, rows, options.repeats))
        console.print(f"{name}: {spread(measured[-1].cpu_ratios)} of CPU time", highlight=False)
    console.print(table(measured))
    if options.json:
        write_result(options.json, 1, {"measured": [asdict(one) for one in measured]})


if __name__ == "__main__":
    main()
