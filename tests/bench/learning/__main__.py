"""Learning benchmark, `make bench-learning`: three seeds of every algorithm and horizon; resumes after an interruption.

python -m tests.bench.learning                     # the studies of algorithms and horizons
python -m tests.bench.learning --study algorithms --seeds 1 --arms ppo,grpo

Each run has its own share of the cores, so concurrent runs do not compete for them.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests import ROOT
from tests.bench.learning.analysis import Point, compare, paired
from tests.support.models import write_byte_model
from verl_agent.agents.registry import make_agent
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.rollout.oracle import demonstrate
from verl_agent.trace.metrics_log import read_metrics, validation_scores
from verl_agent.trace.record_files import read_records

RECIPES = Path(__file__).with_name("recipes")
ALGORITHMS = {
    "ppo": [
        "+overlay/algorithm=ppo",
        "offload=false",
        "critic.optim.lr=1.0e-3",
        "critic.ppo_micro_batch_size_per_gpu=32",
    ],
    "grpo": [],
    "reinforce_pp": ["+overlay/algorithm=reinforce_pp"],
    "rloo": ["+overlay/algorithm=rloo"],
}
HORIZONS = {  # about 16,000 turns and four validations in each arm
    "fixed short": ["horizon.max_turns=[2]", "trainer.total_training_steps=140", "trainer.test_freq=35"],
    "fixed long": ["horizon.max_turns=[6]", "trainer.total_training_steps=60", "trainer.test_freq=15"],
    "ScalingInter": [
        "horizon.max_turns=[2,4,6]",
        "horizon.steps_per_stage=28",
        "trainer.total_training_steps=84",
        "trainer.test_freq=21",
    ],
}


@dataclass(frozen=True, slots=True)
class Study:
    """Comparison of several arms.

    Attributes:
        recipe: name of the shared recipe in the folder `recipes`.
        arms: overrides of each arm; differences are to the first one.
        epochs: epochs of SFT before RL; fewer epochs leave more to learn.
    """

    recipe: str
    arms: Mapping[str, Sequence[str]]
    epochs: int


STUDIES = {
    "algorithms": Study("learn", ALGORITHMS, epochs=60),
    "curriculum": Study("curriculum", HORIZONS, epochs=32),
}
TARGET = 0.85
"""Success whose cost in environment steps and seconds is reported."""


def train(module: str, recipe: str, folder: Path, *overrides: str) -> None:
    """Run or resume one recipe on the cores of this thread; its output goes to a text file next to the folder.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    command = [sys.executable, "-m", module, "--config-dir", str(RECIPES), "--config-name", recipe, *overrides]
    command.append(f"trainer.default_local_dir={folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".txt").open("a") as output:
        subprocess.run(
            command,
            cwd=ROOT,
            check=True,
            env={**os.environ, "VERL_PLATFORM": "cpu"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def warm_started(folder: Path, epochs: int) -> Path:
    """Return the folder of the small model after SFT, and train it if it does not exist."""
    model, warm = folder / "model", folder / f"warm_start_{epochs}"
    if not (model / "config.json").is_file():
        env = make_env("guess_number")
        settings = AgentSettings("act", {"instructions": False})
        texts = [
            f"{message['role']}\n{message['content']}"
            for item in select_tasks(env, "small_train")
            for message in demonstrate(item, env.new_session(), make_agent(settings, env.action_format)).messages
        ]
        sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2, "num_attention_heads": 4}
        write_byte_model(model, texts, vocabulary=384, **sizes)
    train("verl_agent.commands.sft", "warm_start", warm, f"model.path={model}", f"trainer.total_epochs={epochs}")
    return warm


@dataclass(frozen=True, slots=True)
class Run:
    """One training run of a study.

    Attributes:
        study: a key of `STUDIES`.
        arm: name of an arm of the study.
        seed: seed of the order of tasks and of sampling.
    """

    study: str
    arm: str
    seed: int

    def folder(self, root: Path) -> Path:
        """Return the folder of the run."""
        return root / self.study / f"{self.arm.replace(' ', '_')}_{self.seed}"

    def overrides(self) -> list[str]:
        """Return the overrides of the study's recipe."""
        seeded = [f"data.seed={self.seed}", f"actor_rollout_ref.rollout.seed={self.seed}"]
        return [*seeded, *STUDIES[self.study].arms[self.arm]]

    def train(self, root: Path, warm: Mapping[str, Path]) -> "Run":
        """Train to the end, and return this run."""
        study, model = STUDIES[self.study], f"actor_rollout_ref.model.path={warm[self.study]}"
        train("verl_agent.commands.train", study.recipe, self.folder(root), model, *self.overrides())
        return self


def points(folder: Path) -> list[Point]:
    """Return the validations of a run with environment steps and seconds of training until then."""
    metrics = read_metrics(sorted((folder / "metrics").glob("*.jsonl")))
    turns: dict[int, int] = {}
    for start in sorted((folder / "episodes").glob("*.jsonl")):  # a resumed run plays steps again that were not saved
        played: Counter[int] = Counter()
        for record in read_records(start):
            if record["purpose"] == "train":
                played[record["step"]] += len(record["turns"])
        turns |= played
    validations, env_steps, seconds = [], 0, 0.0
    for step, values in metrics.items():
        env_steps, seconds = env_steps + turns.get(step, 0), seconds + values.get("timing_s/step", 0.0)
        for score in validation_scores(values):
            if score.measure == "success":
                validations.append(Point(step, env_steps, seconds, score.value))
    return validations


def plot_success(arms: Mapping[str, Mapping[int, list[Point]]], png: Path) -> None:
    """Plot success against environment steps, one line for each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, runs) in enumerate(arms.items()):
        for first, run in enumerate(runs.values()):
            steps, success = [point.env_steps for point in run], [point.success for point in run]
            axes.plot(steps, success, color=f"C{number}", lw=1.2, label=None if first else name)
    axes.set(xlabel="environment steps", ylabel="success", ylim=(0, 1))
    axes.legend()
    figure.savefig(png)


def report(study: str, arms: Mapping[str, Mapping[int, list[Point]]], folder: Path, console: Console) -> None:
    """Write table, plot and JSON file of the finished runs, with differences over the seeds that all arms have."""
    table = compare({name: list(runs.values()) for name, runs in arms.items()}, TARGET)
    if seeds := sorted(set.intersection(*(set(runs) for runs in arms.values()))):
        differences = paired({name: [runs[seed] for seed in seeds] for name, runs in arms.items()})
        table = {name: {**figures, "pairs": len(seeds), **differences[name]} for name, figures in table.items()}
    shown = Table(study, *table)
    for figure in next(iter(table.values())):
        shown.add_row(figure, *(str(figures[figure]) for figures in table.values()))
    console.print(shown)
    runs = {
        name: {seed: [[p.step, p.env_steps, p.seconds, p.success] for p in run] for seed, run in of.items()}
        for name, of in arms.items()
    }
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    result = {"command": sys.argv, "commit": commit, "table": table, "runs": runs}
    (folder / f"{study}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plot_success(arms, folder / f"{study}.png")


def threads(jobs: int) -> ThreadPoolExecutor:
    """Return one thread for each job; its child processes inherit its share of this machine's cores."""
    cores = sorted(os.sched_getaffinity(0))
    parts = iter([cores[job::jobs] for job in range(jobs)])
    return ThreadPoolExecutor(jobs, initializer=lambda: os.sched_setaffinity(0, next(parts)))


def runs_of(studies: Sequence[str], arms: str | None, seeds: int) -> list[Run]:
    """Return all runs, ordered by seed."""
    return [
        Run(study, arm, seed)
        for study in studies
        for seed in range(1, seeds + 1)
        for arm in (arms.split(",") if arms else STUDIES[study].arms)
    ]


def finished(study: str, done: Collection[Run], root: Path) -> dict[str, dict[int, list[Point]]]:
    """Return the validations of a study's finished runs by arm and seed."""
    runs = sorted((run for run in done if run.study == study), key=lambda run: run.seed)
    by_arm = {
        arm: {run.seed: points(run.folder(root)) for run in runs if run.arm == arm} for arm in STUDIES[study].arms
    }
    return {arm: arm_runs for arm, arm_runs in by_arm.items() if arm_runs}


def main() -> None:
    """Train the missing runs and report the finished ones."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=STUDIES, action="append", help="default: algorithms and curriculum")
    parser.add_argument("--arms", help="comma-separated arms of a study; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=min(cores, 4), help="concurrent runs, 8 GB of memory each; default: %(default)s"
    )
    parser.add_argument("--report", action="store_true", help="only report the finished runs")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/bench_learning")
    options = parser.parse_args()
    console, root = Console(), options.folder.resolve()
    root.mkdir(parents=True, exist_ok=True)
    studies = options.study or ["algorithms", "curriculum"]
    runs = runs_of(studies, options.arms, options.seeds)
    if options.report:
        finished_runs = [run for run in runs if points(run.folder(root))]
        for study in studies:
            if arms := finished(study, finished_runs, root):
                report(study, arms, root, console)
        return
    warm = {study: warm_started(root, STUDIES[study].epochs) for study in studies}
    done: set[Run] = set()
    with threads(min(options.jobs, cores)) as pool:
        waiting = [pool.submit(run.train, root, warm) for run in runs]
        try:
            for ended in as_completed(waiting):
                run = ended.result()
                done.add(run)
                console.print(f"{run.arm}, seed {run.seed}: done")
                report(run.study, finished(run.study, done, root), root, console)
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
