"""Asynchronous against synchronous rollout: `python -m tests.bench.partial [FOLDER] [--scene NAME] [--steps N]`.

Both train a tiny random model with the real trainer, one after the other, on an environment that waits
(`tests.bench.waiting`): episodes of up to 25 turns, with a long tail of latencies and of lengths. In the second scene
there is no latency, so the engine is the bottleneck. Choose `--median-s` and `--epochs` so that the update takes about
30 % of a synchronous step; the table shows the share. Both modes train on the same tasks, each group once, which the
recorded tokens of every step show. The table counts all steps but the first. Finished runs are kept in the folder and
not repeated with equal options.
"""

import argparse
import subprocess
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records
from verl_agent.trace.token_files import token_files

BATCH, SAMPLES = 8, 4
RECIPE = """# Tiny model on an environment that waits, written by tests/bench/partial.py.
defaults: [agent_grpo, cpu, _self_]
env: {{name: waiting, dev_tasks: null, options: {{median_s: {median_s}}}}}
agent: {{name: raw}}
horizon: {{max_turns: [25]}}
episode: {{max_tokens_per_turn: {tokens}, on_truncated_turn: play, record_tokens: {{every: 1, groups: {batch}}}}}
data: {{train_batch_size: {batch}, max_prompt_length: 64, max_response_length: 960}}
algorithm: {{rollout_correction: {{bypass_mode: false, rollout_is: token}}}}
actor_rollout_ref:
  actor: {{use_kl_loss: false, ppo_epochs: {epochs}, optim: {{lr: 1.0e-4}}}}
  rollout: {{n: {samples}, max_num_seqs: 64}}
trainer: {{total_training_steps: {steps}, save_freq: -1, test_freq: -1, experiment_name: {name}}}
"""
WAITING = {"waiting": "tests.bench.waiting:WaitingEnv"}
MODEL = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
"""Sizes with which the update takes seconds, and the engine milliseconds for a token."""
MODES: Mapping[str, Sequence[str]] = {"synchronous": (), "partial": ("+overlay/rollout=partial",)}
SCENES = {"environment": (1.0, 6), "engine": (0.0, 12)}
"""Bottleneck: factor of `--median-s`, and tokens of a turn."""
HEADINGS = ("rollout", "episodes/s", "speed-up", "outside rollout", "solved", "of those played", "staleness", "oldest")


@dataclass(frozen=True, slots=True)
class Result:
    """Means over the measured steps of a run.

    Attributes:
        episodes_s: episodes trained on per second.
        update: share of the time of a step outside of the rollout.
        solved: share of solved episodes among those trained on, in all steps.
        played: share of solved episodes among all that were dispatched.
        once: True if every group that was dispatched was trained on in exactly one step.
        staleness: mean age of a token in updates.
        oldest: largest age of a token in updates.
    """

    episodes_s: float
    update: float
    solved: float
    played: float
    once: bool
    staleness: float
    oldest: float


def summarize(
    steps: Mapping[int, Mapping[str, float]],
    records: Sequence[EpisodeRecord],
    trained: Mapping[int, Collection[tuple[str, int]]],
) -> Result:
    """Return the result of a run.

    Args:
        steps: metrics of all steps, by step.
        records: records of all episodes.
        trained: group and sample of each episode that a step has trained on, by step.
    """
    measured = [values for step, values in steps.items() if step > min(steps)]
    success = {(record["group"], record["sample"]): record["success"] for record in records}
    steps_of_group = Counter(group for episodes in trained.values() for group in {group for group, _ in episodes})

    def mean(name: str) -> float:
        return fmean(values[name] for values in measured)

    return Result(
        episodes_s=BATCH * SAMPLES / mean("timing_s/step"),
        update=1 - mean("timing_s/gen") / mean("timing_s/step"),
        solved=fmean(success[episode] for episodes in trained.values() for episode in episodes),
        played=fmean(record["success"] for record in records),
        once=steps_of_group == dict.fromkeys((group for group, _ in success), 1),
        staleness=mean("staleness/mean"),
        oldest=max(values["staleness/max"] for values in measured),
    )


def trained_episodes(run: Path) -> dict[int, set[tuple[str, int]]]:
    """Return group and sample of the episodes in the token files of a run, by step."""
    trained: dict[int, set[tuple[str, int]]] = {}
    for file in token_files(run):
        table = pq.read_table(file, columns=["step", "group", "sample"])
        for row in table.to_pylist():
            trained.setdefault(row["step"], set()).add((row["group"], row["sample"]))
    return trained


def register(folder: Path, **adapters: str) -> Path:
    """Write the metadata of a package that registers environments, and return the folder to put on the path.

    Args:
        folder: folder for the package.
        adapters: adapter of each name, as `module:class`.
    """
    package = folder / "package/bench_envs-1.0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    package.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: bench_envs\nVersion: 1.0\n")
    lines = [f"{name} = {adapter}" for name, adapter in adapters.items()]
    package.joinpath("entry_points.txt").write_text("\n".join(["[verl_agent.envs]", *lines, ""]))
    return package.parent


def measure(folder: Path, scene: str, mode: str, median_s: float, steps: int, epochs: int) -> Result:
    """Return the result of a run, which is made if the folder does not have it."""
    from tests.support.models import write_byte_model  # these import torch
    from tests.support.training_runs import command_line, run_environment, wait_for_end

    model, run = folder / "model", folder / f"{scene}_{mode}_{median_s:g}s_{epochs}x"
    if not (model / "config.json").is_file():
        write_byte_model(model, ["Begin. Go on."], vocabulary=300, **MODEL)
    done = read_metrics(sorted(run.glob("metrics/*.jsonl")))
    if steps not in done:
        factor, tokens = SCENES[scene]
        sizes = {"batch": BATCH, "samples": SAMPLES, "steps": steps, "tokens": tokens, "epochs": epochs}
        recipe = RECIPE.format(name=run.name, median_s=factor * median_s, **sizes)
        (folder / f"{run.name}.yaml").write_text(recipe)
        paths = [f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={run}"]
        command = command_line("train", folder, run.name, *MODES[mode], *paths)
        subprocess.run(command, env=run_environment(folder, register(folder, **WAITING)), check=True)
        wait_for_end(folder)
        done = read_metrics(sorted(run.glob("metrics/*.jsonl")))
    return summarize(done, list(read_records(run / "episodes")), trained_episodes(run))


def main() -> None:
    """Run what has not ended, and print a table for each scene."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="runs/bench_partial", type=Path)
    parser.add_argument("--scene", choices=SCENES, action="append", help="bottleneck; default: both")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--median-s", type=float, default=0.1, help="median latency of the environment in seconds")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the batch in an update")
    options = parser.parse_args()
    folder, console = options.folder.resolve(), Console()
    folder.mkdir(parents=True, exist_ok=True)
    for scene in options.scene or SCENES:
        table = Table(*HEADINGS, title=f"bottleneck: {scene}")
        results = {
            mode: measure(folder, scene, mode, options.median_s, options.steps, options.epochs) for mode in MODES
        }
        base = results["synchronous"].episodes_s
        for mode, result in results.items():
            table.add_row(
                mode,
                f"{result.episodes_s:.2f}",
                f"{result.episodes_s / base:.2f}",
                f"{result.update:.0%}",
                f"{result.solved:.1%}",
                f"{result.played:.1%}" + ("" if result.once else " (not all were trained on)"),
                f"{result.staleness:.2f}",
                f"{result.oldest:.0f}",
            )
        console.print(table)


if __name__ == "__main__":
    main()
