"""Row of verl's batch as the agent loop reads it: the task, its position in the run, and its turn limit."""

from dataclasses import dataclass
from typing import Any, Self

from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.trace.record import Purpose


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One row of verl's batch: the columns of `TaskDataset`, and those that verl and the trainer add.

    Attributes:
        purpose: train, validation or test.
        env_label: label of the environment, see `verl_agent.config.mixture`.
        tasks: name of the selection that the task belongs to.
        step: training step, from 1.
        sample: number of the episode in its group, from 0.
        max_turns: turn limit that the trainer decided; None in validation.
        draw: number of earlier times that the step drew the task.
    """

    purpose: Purpose
    env_label: str
    tasks: str
    task_id: str
    step: int
    group: str
    sample: int
    max_turns: int | None = None
    draw: int = 0

    @classmethod
    def from_columns(cls, columns: dict[str, Any]) -> Self:
        """Read the columns with which verl calls `EpisodeLoop.run`."""
        max_turns = columns.get("max_turns")
        return cls(
            purpose=columns["purpose"],
            env_label=columns["env_label"],
            tasks=columns["tasks"],
            task_id=columns["task_id"],
            step=int(columns["global_steps"]),
            group=str(columns["uid"]),
            sample=int(columns["session_id"]),
            max_turns=None if max_turns is None else int(max_turns),
            draw=int(columns.get("draw", 0)),
        )

    @property
    def position(self) -> dict[str, Any]:
        """Fields of `EpisodeMeta` that tell the place of the episode in the run."""
        names = ("purpose", "step", "group", "sample")
        return {"split": self.tasks, **{name: getattr(self, name) for name in names}}

    def seed(self, run: int, attempt: int) -> EpisodeSeed:
        """Return the seed of one attempt at the episode; `group` has no part in it, since verl draws it at random."""
        return EpisodeSeed(
            run, self.purpose, self.env_label, self.task_id, self.step, self.sample, self.draw, attempt=attempt
        )
