"""Seeds of sampling: each request has its own, which follows from the position of its reply in the run.

A run that resumes therefore draws the same random numbers as one that never stopped. Whether the replies are the same
depends on the engine, see docs/explanations/seeds.md.
"""

import hashlib
import json
from collections import Counter
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class EpisodeSeed:
    """Position of an attempt at an episode in a run, from which the seeds of its requests follow.

    Attributes:
        run: seed of the run or of the evaluation.
        purpose: purpose of the episode, so that training and validation of a step differ.
        sample: index among the samples of the task, from 0.
        draw: number of earlier times that this step drew the task, >= 0; above 0 only where groups are replaced.
        attempt: number of the attempt, from 1. A retry draws other replies than the attempt that failed.
    """

    run: int
    purpose: str
    env: str
    task: str
    step: int
    sample: int
    draw: int = 0
    attempt: int = 1

    def at(self, turn: int) -> int:
        """Return the seed of the request of one turn, counted from 0; 31 bits, since engines may use a signed int32."""
        position = json.dumps([*astuple(self), turn])
        return int.from_bytes(hashlib.sha256(position.encode()).digest()[:4]) >> 1


class TaskDraws:
    """Counter of the draws of each task in the current training step.

    A step that replaces groups (DAPO) may draw a task again. Its episodes must then differ from those of the first
    draw.
    """

    def __init__(self) -> None:
        self._step = -1
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, step: int, env: str, task: str) -> int:
        """Return the number of earlier draws of a task in `step`, and count this one."""
        if step != self._step:
            self._step, self._counts = step, Counter()
        self._counts[env, task] += 1
        return self._counts[env, task] - 1
