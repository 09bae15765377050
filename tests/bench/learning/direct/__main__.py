"""Learning benchmark in one process per run: many seeds of small variants of the method, in minutes.

python -m tests.bench.learning.direct --study order --seeds 16

Finished runs are kept in the folder and not repeated. `arms.py` has the studies.
"""

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from tests import ROOT
from tests.bench.learning.analysis import Point, compare, over_seeds, paired
from tests.bench.learning.direct.arms import STUDIES
from tests.bench.learning.direct.runs import run_file, train, warm, warm_file, write

TARGET = 0.8
"""Success whose cost in environment steps and seconds is reported."""


def report(study: str, arms: Sequence[str], seeds: Sequence[int], folder: Path, console: Console) -> None:
    """Print the seeds that all arms have finished, and paired differences to the first arm."""
    complete = [seed for seed in seeds if all(run_file(folder, study, arm, seed).is_file() for arm in arms)]
    if not complete:
        return
    loaded = {
        arm: [json.loads(run_file(folder, study, arm, seed).read_text(encoding="utf-8")) for seed in complete]
        for arm in arms
    }
    runs = {arm: [[Point(*point) for point in run["points"]] for run in of_arm] for arm, of_arm in loaded.items()}
    table = {name: {**figures} for name, figures in compare(runs, TARGET).items()}
    for name, figures in paired(runs).items():
        table[name] |= figures
    for name, of_arm in loaded.items():
        means = zip(*(run["advantages"] for run in of_arm), strict=True)
        table[name]["advantage_of_updates"] = " ".join(f"{sum(values) / len(values):+.2f}" for values in means)
        table[name]["staleness"] = f"{fmean(run.get('staleness', 0.0) for run in of_arm):.2f}"
        table[name]["seconds"] = over_seeds([run["points"][-1][2] for run in of_arm])
    shown = Table(study, *table)
    for figure in next(iter(table.values())):
        shown.add_row(figure, *(str(figures[figure]) for figures in table.values()))
    console.print(shown)
    write(folder / f"{study}.json", table)


def main() -> None:
    """Train the missing runs and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=STUDIES, required=True)
    parser.add_argument("--arms", help="comma-separated arms; default: all. The first one is the reference")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="concurrent runs")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/bench_direct")
    options = parser.parse_args()
    folder, seeds = options.folder.resolve(), range(1, options.seeds + 1)
    folder.mkdir(parents=True, exist_ok=True)
    arms = options.arms.split(",") if options.arms else list(STUDIES[options.study])
    missing = [
        (arm, seed) for seed in seeds for arm in arms if not run_file(folder, options.study, arm, seed).is_file()
    ]
    console = Console()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        cold = {seed for _, seed in missing if not warm_file(folder, options.study, seed).exists()}
        for ended in as_completed([pool.submit(warm, options.study, seed, folder) for seed in sorted(cold)]):
            ended.result()
        waiting = {pool.submit(train, options.study, arm, seed, folder): f"{arm}, seed {seed}" for arm, seed in missing}
        for ended in as_completed(waiting):
            ended.result()
            console.print(f"{waiting[ended]}: done")
    report(options.study, arms, seeds, folder, console)


if __name__ == "__main__":
    main()
