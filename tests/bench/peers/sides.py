"""Both sides of the comparison: command of one run, and what it measured."""

import io
import json
import sys
import time
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from typing_extensions import override

from tests import ROOT
from tests.bench.memory import measure_memory
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record_files import read_records

PEERS = Path(__file__).parent
TRL_PYTHON = ROOT / ".venv-trl/bin/python"
STARTS = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
SKIPPED = STARTS | {tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER}
"""Tokens after which a statement begins, and those that are no code."""
LIMIT_S = 1500.0
"""Most seconds of one run."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a run.

    Attributes:
        model: folder of the model that both sides begin with.
        tasks: tasks of a step.
        samples: episodes of each task.
        steps: updates of a run.
    """

    model: str
    tasks: int
    samples: int
    steps: int


@dataclass(frozen=True, slots=True)
class Step:
    """One training step; durations in seconds.

    Attributes:
        rollout_s: duration of all episodes.
        update_s: duration of the update, with everything between rollout and transfer.
        weights_s: duration of the transfer of weights to the engine.
        step_s: duration of the step.
        episodes: number of episodes.
        solved: number of solved ones.
    """

    rollout_s: float
    update_s: float
    weights_s: float
    step_s: float
    episodes: int
    solved: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one side.

    Attributes:
        side: `verl-agent` or `TRL`.
        steps: its steps.
        wall_s: duration of the command in seconds, start and end included.
        peak_gb: largest memory of all its processes in GB.
    """

    side: str
    steps: list[Step]
    wall_s: float
    peak_gb: float

    @property
    def start_s(self) -> float:
        """Seconds of the command outside of steps: imports, loading, and the end."""
        return self.wall_s - sum(step.step_s for step in self.steps)

    def at(self, wall_s: float) -> Step:
        """Return the last step that had ended at a time after the start; the first one if none had."""
        ended = accumulate((step.step_s for step in self.steps), initial=self.start_s)
        done = [step for step, end in zip(self.steps, list(ended)[1:], strict=True) if end <= wall_s]
        return done[-1] if done else self.steps[0]


class Side:
    """One side of the comparison.

    Attributes:
        name: name in the tables.
        user_files: files that a user writes for this task, apart from the game itself.
    """

    name: str
    user_files: Sequence[Path]

    def command(self, shape: Shape, folder: Path) -> list[str]:
        """Return the command that trains in an empty folder."""
        raise NotImplementedError

    def steps(self, folder: Path) -> list[Step]:
        """Return the steps of a run."""
        raise NotImplementedError

    def run(self, shape: Shape, folder: Path) -> Run:
        """Train once.

        Raises:
            RuntimeError: the command failed.
        """
        folder.mkdir(parents=True)
        began = time.monotonic()
        usage, status = measure_memory(self.command(shape, folder), limit_s=LIMIT_S)
        wall_s = time.monotonic() - began
        if status:
            raise RuntimeError(f"the run of {self.name} ended with status {status}; its output is above.")
        return Run(self.name, self.steps(folder), wall_s, usage.peak_gb)


class VerlAgent(Side):
    """This project."""

    name = "verl-agent"
    user_files = (ROOT / "recipes/textcraft/grpo_cpu.yaml", ROOT / "env_adapters/textcraft/adapter.py")

    @override
    def command(self, shape: Shape, folder: Path) -> list[str]:
        recipes = str(ROOT / "recipes/textcraft")
        return [
            *[sys.executable, "-m", "verl_agent.commands.train", "--config-dir", recipes, "--config-name", "grpo_cpu"],
            *["trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"],
            f"actor_rollout_ref.model.path={shape.model}",
            f"data.train_batch_size={shape.tasks}",
            f"actor_rollout_ref.rollout.n={shape.samples}",
            f"trainer.total_training_steps={shape.steps}",
            f"trainer.default_local_dir={folder / 'run'}",
        ]

    @override
    def steps(self, folder: Path) -> list[Step]:
        logged = read_metrics(sorted((folder / "run/metrics").glob("*.jsonl")))
        played = [record for record in read_records(folder / "run/episodes") if record["purpose"] == "train"]
        made = []
        for number, values in sorted(logged.items()):
            rollout_s, weights_s, step_s = (values[f"timing_s/{name}"] for name in ("gen", "update_weights", "step"))
            solved = [record["success"] for record in played if record["step"] == number]
            update_s = step_s - rollout_s - weights_s
            made.append(Step(rollout_s, update_s, weights_s, step_s, len(solved), sum(solved)))
        return made


class Trl(Side):
    """TRL's GRPOTrainer with vLLM in its own process."""

    name = "TRL"
    user_files = (PEERS / "textcraft_trl.py",)

    @override
    def command(self, shape: Shape, folder: Path) -> list[str]:
        sizes = {"tasks": shape.tasks, "samples": shape.samples, "steps": shape.steps}
        arguments = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
        return [str(TRL_PYTHON), "-m", "tests.bench.peers.textcraft_trl", shape.model, str(folder), *arguments]

    @override
    def steps(self, folder: Path) -> list[Step]:
        return [Step(**step) for step in json.loads((folder / "steps.json").read_text(encoding="utf-8"))]


def code_lines(file: Path) -> int:
    """Return the number of lines of a Python or YAML file that hold more than comments and docstrings."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return sum(1 for line in text.splitlines() if line.partition("#")[0].strip())
    lines, starts = set[int](), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED and not (starts and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        starts = token.type in STARTS or (starts and token.type in SKIPPED)
    return len(lines)
