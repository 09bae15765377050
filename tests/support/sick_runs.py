"""Runs that fall ill at a known step, and healthy ones, drawn from the episodes and metrics of a real run."""

import json
import random
import tarfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests import ROOT
from verl_agent.trace.episode_summary import summarize_episode
from verl_agent.trace.metrics import episode_metrics
from verl_agent.trace.record import EpisodeRecord, Purpose, to_episode
from verl_agent.trace.record_files import EpisodeWriter

REAL = ROOT / "docs/results/textcraft_quickstart.tar.gz"
STEPS, GROUPS, SAMPLES, VALIDATED, EVERY = 60, 4, 4, 24, 5

Change = Callable[[EpisodeRecord, random.Random], None]
"""Changes an episode in place."""


@dataclass(frozen=True)
class MadeUpRun:
    """Course of a run.

    Attributes:
        name: word in the first line of its findings; "" for a healthy run.
        onset: first step that is ill.
        success: success of training at a step, 0 to 1.
        validation: that of validations; None for the same.
        change: change of a training episode at a step; None for none.
        metrics: metrics of a step instead of the real ones; None for NaN.
        limit: turn limit of a step.
        length: factor of the tokens of a reply at a step.
        equal: True at a step at which all episodes of a group end alike.
        resumed: step at which the run was resumed; 0 for never.
    """

    name: str
    onset: int
    success: Callable[[int], float]
    validation: Callable[[int], float] | None = None
    change: Callable[[int], Change | None] = lambda step: None
    metrics: Callable[[int], Mapping[str, float | None]] = lambda step: {}
    limit: Callable[[int], int] = lambda step: 8
    length: Callable[[int], float] = lambda step: 1.0
    equal: Callable[[int], bool] = lambda step: False
    resumed: int = 0


@dataclass
class PlayedRun:
    """Records and lines of metrics of a run, one list of lines for each start."""

    records: list[EpisodeRecord] = field(default_factory=list)
    starts: list[list[dict[str, Any]]] = field(default_factory=lambda: [[]])

    def write(self, folder: Path) -> Path:
        """Write the folder of the run."""
        (folder / "metrics").mkdir(parents=True)
        for number, lines in enumerate(self.starts):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"metrics/20260101T{number:02}0000.jsonl").write_text(text)
        with EpisodeWriter(folder / "episodes/made_up.jsonl") as writer:
            for record in self.records:
                writer.write(record)
        return folder


@cache
def real_run() -> tuple[list[EpisodeRecord], list[dict[str, Any]]]:
    """Return the records and the metrics by step of a real run."""
    with tarfile.open(REAL) as packed:
        lines = {
            kind: [json.loads(line) for name in names for line in packed.extractfile(name) or ()]
            for kind in ("episodes", "metrics")
            if (names := [name for name in packed.getnames() if f"/{kind}/" in name and name.endswith(".jsonl")])
        }
    steps = [line["data"] for line in lines["metrics"] if "actor/grad_norm" in line["data"]]
    return lines["episodes"], steps


def play(run: MadeUpRun, seed: int = 0) -> PlayedRun:
    """Draw the episodes and the metrics of a run."""
    rng, played = random.Random(seed), PlayedRun()
    records, steps = real_run()
    of_task = defaultdict[tuple[bool, str], list[EpisodeRecord]](list)
    for one in records:
        if not one["success"] or len(one["turns"]) >= one["oracle_turns"]:
            of_task[one["success"], one["task"]].append(one)
    tasks = sorted(task for success, task in of_task if success and (False, task) in of_task)

    def draw(step: int, purpose: Purpose, group: str, sample: int, task: str, success: float) -> EpisodeRecord:
        record = copy(rng.choice(of_task[rng.random() < success, task]))
        record["turns"] = [copy(turn) for turn in record["turns"]]
        record |= {"purpose": purpose, "step": step, "group": group, "sample": sample, "max_turns": run.limit(step)}
        minute = f"2026-01-01T{step // 60:02}:{step % 60:02}:{sample:02}+00:00"
        record |= {"task": task, "started_at": minute, "shaped_return": record["reward"]}
        for turn in record["turns"]:
            turn["tokens"] = round(turn["tokens"] * run.length(step) * rng.uniform(0.7, 1.4))
        if purpose == "train" and (change := run.change(step)) is not None:
            change(record, rng)
        return record

    for step in range(STEPS + 1):
        if step % EVERY == 0:
            rate = run.validation or run.success
            for number in range(VALIDATED):
                task = tasks[number % len(tasks)]
                played.records.append(draw(step, "validation", f"v{step}-{number}", 0, task, rate(step)))
        if not step:
            continue
        now = []
        for group in range(GROUPS):
            task, luck = rng.choice(tasks), float(rng.random() < run.success(step))
            rate = luck if run.equal(step) else run.success(step)
            now += [draw(step, "train", f"{step}-{group}", sample, task, rate) for sample in range(SAMPLES)]
        if step == run.resumed:
            played.starts.append([])
        summaries = (summarize_episode(to_episode(one)) for one in now)
        noise = {name: value * rng.uniform(0.85, 1.2) for name, value in steps[step % len(steps)].items()}
        data = {name: value for name, value in noise.items() if not name.startswith("val-")}
        data |= episode_metrics(summaries) | {"actor/entropy_loss": 0.5 * rng.uniform(0.9, 1.1), "actor/lr": 1e-5}
        given = run.metrics(step)
        exact = ("actor/lr", *(name for name, value in given.items() if value is None))
        data |= {name: one if name in exact else one * rng.uniform(0.85, 1.2) for name, one in given.items()}
        played.starts[-1].append({"step": step, "data": data})
        played.records += now
    return played


def level(before: float, after: float, onset: int, over: int = 1) -> Callable[[int], float]:
    """Return a course that goes from one level to another within some steps."""
    return lambda step: before + (after - before) * min(1.0, max(0, step - onset + 1) / over)


def share(part: Callable[[int], float], change: Change) -> Callable[[int], Change | None]:
    """Return a change of a growing share of the episodes."""

    def of_step(step: int) -> Change | None:
        def changed(record: EpisodeRecord, rng: random.Random) -> None:
            if rng.random() < part(step):
                change(record, rng)

        return changed if part(step) else None

    return of_step


def _fail(record: EpisodeRecord, stop: str) -> None:
    record |= {"success": False, "reward": 0.0, "shaped_return": 0.0, "stop": stop}
    for turn in record["turns"]:
        turn |= {"reward": 0.0, "terminated": False}


def lose_format(record: EpisodeRecord, rng: random.Random) -> None:
    """Let the replies have no action."""
    _fail(record, "turn_limit")
    for turn in record["turns"]:
        turn |= {"action": None, "reply": f"I think {rng.random()}"}


def break_environment(record: EpisodeRecord, rng: random.Random) -> None:
    """End with an error of the environment."""
    _fail(record, "env_error")
    record["error"] = f"TimeoutError: step took longer than 30 s\nhost {rng.randrange(9)}"


def cut(record: EpisodeRecord, rng: random.Random) -> None:
    """Let a token budget cut the last reply."""
    _fail(record, "episode_tokens")
    record["turns"][-1] |= {"truncated_by": "episode_tokens"}


def skip_task(record: EpisodeRecord, rng: random.Random) -> None:
    """Solve in one turn what the oracle needs more for."""
    record |= {"success": True, "reward": 1.0, "shaped_return": 1.0, "stop": "terminated"}
    record["turns"] = record["turns"][:1]
    record["turns"][0] |= {"reward": 1.0, "terminated": True, "action": f"cheat {rng.random()}"}


def say_the_same(record: EpisodeRecord, rng: random.Random) -> None:
    """Earn the reward with the same actions in every task."""
    turn = {**record["turns"][0], "reply": "Action: open sesame", "action": "open sesame"}
    record["turns"] = [{**turn, "reward": float(at == 1), "terminated": at == 1} for at in (0, 1)]
    record |= {"oracle_turns": 2, "success": True, "reward": 1.0, "shaped_return": 1.0, "stop": "terminated"}


def learns(low: float, high: float, until: int) -> Callable[[int], float]:
    """Return a course that rises until a step and then stays."""
    return lambda step: low + (high - low) * min(1.0, step / until)


SICK = {
    "shortcut": MadeUpRun(
        "Reward hacking", 30, level(0.3, 0.5, 30, 10), lambda step: 0.3, share(level(0, 0.8, 30, 6), skip_task)
    ),
    "same replies": MadeUpRun(
        "Reward hacking", 36, lambda step: 0.3, level(0.4, 0.15, 36, 10), share(level(0, 0.9, 36, 6), say_the_same)
    ),
    "validation falls": MadeUpRun("Reward hacking", 26, level(0.3, 0.8, 26, 15), level(0.45, 0.1, 26, 10)),
    "entropy collapse": MadeUpRun(
        "Entropy collapse", 32, lambda step: 0.35, equal=lambda step: step >= 36,
        metrics=lambda step: {"actor/entropy_loss": level(0.5, 0.02, 32, 8)(step)},
    ),
    "gradient norm": MadeUpRun(
        "Divergence", 40, level(0.4, 0.15, 42, 8),
        metrics=lambda step: {"actor/grad_norm": level(1.5, 60, 40, 4)(step), "actor/lr": 1e-5 if step < 40 else 1e-4},
    ),
    "not a number": MadeUpRun(
        "Divergence", 45, level(0.4, 0.0, 46),
        metrics=lambda step: {} if step < 45 else {"actor/grad_norm": None, "actor/pg_loss": None},
    ),
    "format": MadeUpRun("Format collapse", 34, lambda step: 0.4, change=share(level(0, 0.8, 34, 8), lose_format)),
    "environment": MadeUpRun(
        "Environment errors", 28, lambda step: 0.4, change=share(level(0, 0.4, 28), break_environment)
    ),
    "length": MadeUpRun("Length growth", 25, lambda step: 0.35, length=level(1, 4, 25, 20)),
    "groups": MadeUpRun("Groups without signal", 38, lambda step: 0.4, equal=lambda step: step >= 38),
    "staleness": MadeUpRun(
        "Staleness", 30, level(0.4, 0.25, 32, 10), resumed=30,
        metrics=lambda step: {"staleness/mean": level(0.3, 3, 30, 3)(step)},
    ),
    "stage": MadeUpRun(
        "Truncation", 41, lambda step: 0.4, limit=lambda step: 6 if step < 41 else 12,
        change=share(level(0, 0.5, 41), cut),
    ),
}  # fmt: skip
"""Ill runs by name."""

HEALTHY = {
    "fast": MadeUpRun(
        "", 0, learns(0.1, 0.9, 40), limit=lambda step: 4 if step < 20 else 6 if step < 40 else 8,
        metrics=lambda step: {"actor/entropy_loss": max(0.06, 0.6 * 0.94**step)},
    ),
    "slow": MadeUpRun("", 0, learns(0.15, 0.45, 60), learns(0.1, 0.4, 60)),
    "plateau": MadeUpRun(
        "", 0, learns(0.2, 0.7, 20), length=learns(1, 1.8, 20),
        metrics=lambda step: {"actor/entropy_loss": max(0.12, 0.5 - 0.02 * step)},
    ),
}  # fmt: skip
"""Runs that learn by name."""
