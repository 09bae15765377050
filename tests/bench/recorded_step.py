"""Step of a training run on a CPU, as its folder records it: rows of tokens, seconds, and sizes of batches."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq

from verl_agent.config.composing import compose_training
from verl_agent.config.keys import value_at
from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.platform.worker_environment import THREADS, worker_environment
from verl_agent.runs.identity import LOCK_FILE, SETTINGS_FILE, read_settings

Row = TypeVar("Row")
Request = tuple[list[int], int]
"""Tokens that the engine reads, and the number that it writes."""
REMEDY = (
    "Run it again with trainer.save_freq=1, trainer.v1.sampler.sampler_kwargs.skip_uniform=false, "
    "episode.record_tokens.every=1 and an episode.record_tokens.groups of at least data.train_batch_size, or use "
    "`make bench-roofline`."
)


SIZES = (
    "data.train_batch_size",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
)
"""Settings that a run keeps in its record, and that its recipe must still have."""


class UnusableRunError(Exception):
    """Error of a run that lacks what the table needs."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a forward pass.

    Attributes:
        tokens: tokens that are computed.
        pairs: pairs of such a token and an earlier one or itself in the same row.
        logits: tokens whose log-probs are computed.
    """

    tokens: int
    pairs: int
    logits: int


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

    @property
    def read(self) -> Work:
        """Work of the engine for tokens that others wrote."""
        lengths, again = [len(row) for row in self.tokens], self.repeated
        tokens = self.total - self.written - sum(again)
        positions = self.positions + self.written  # a token attends to itself, too
        return Work(tokens, pairs(lengths) - pairs(again) - positions, 0)

    @property
    def turns(self) -> int:
        """Largest number of replies in a row."""
        return max(len(asked) for asked in requests(self.tokens, self.masks))


@dataclass(frozen=True, slots=True)
class Batches:
    """Parts of a step that the trainer computes one after another.

    Attributes:
        mini: rows of an optimizer step.
        epochs: times that an update sees each row.
        micro: rows of a micro-batch of the update.
        scored: rows of a micro-batch of log-probs.
    """

    mini: int
    epochs: int
    micro: int
    scored: int

    def mini_batches(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """Return the rows of each optimizer step of an epoch, in the order of the rows.

        The trainer shuffles whole groups first (`verl_agent.training.batch_order`). With several optimizer steps in an
        epoch, each has other rows than here, and all together have the same ones.
        """
        return [rows[start : start + self.mini] for start in range(0, len(rows), self.mini)]


@dataclass(frozen=True, slots=True)
class Step:
    """Recorded step of a run.

    Attributes:
        number: training step, from 1.
        timing: seconds by name, verl's `timing_s/*`.
        model: folder of a checkpoint's model.
        threads: threads of each process, if the run's recipe is started from this shell.
    """

    number: int
    rows: Rows
    timing: dict[str, float]
    model: Path
    batches: Batches
    threads: int

    @classmethod
    def of(cls, run: Path, number: int | None) -> "Step":
        """Read a step; None stands for the last one with tokens.

        Raises:
            UnusableRunError: the run lacks a file, or its tokens lack rows.
        """
        files = {int(file.stem.partition("_")[2]): file for file in (run / "tokens").glob("step_*.parquet")}
        if not files or (number is not None and number not in files):
            known = f" has the steps {', '.join(map(str, sorted(files)))}" if files else " has no step_*.parquet"
            raise UnusableRunError(f"{run / 'tokens'}{known}. {REMEDY}")
        number = max(files) if number is None else number
        logged: dict[str, float] = {}
        for file in sorted((run / "metrics").glob("*.jsonl")):
            for line in map(json.loads, file.read_text().splitlines()):
                if line["step"] == number and "timing_s/gen" in line["data"]:
                    logged = line["data"]
        if not logged:
            raise UnusableRunError(f"{run / 'metrics'} has no times of step {number}. {REMEDY}")
        folder = next(run.glob("global_step_*/actor/huggingface"), None)
        if folder is None:
            raise UnusableRunError(f"{run} has no checkpoint. {REMEDY}")
        plan, rows = recorded_plan(run), Rows.of(files[number])
        if len(rows.tokens) < (episodes := plan.batch.episodes):
            raise UnusableRunError(
                f"{files[number]} has {len(rows.tokens)} of the step's {episodes} episodes. {REMEDY}"
            )
        batches = Batches(
            mini=plan.actor.mini_tasks * plan.batch.samples,
            epochs=plan.actor.epochs,
            micro=int(plan.actor.passes.rows or 1),
            scored=int(plan.log_probs.rows or 1),
        )
        timing = {name.partition("/")[2]: value for name, value in logged.items() if name.startswith("timing_s/")}
        own = plan.value("ray_kwargs.ray_init.runtime_env.env_vars") or {}
        variables = {**worker_environment(run, plan.layout.ranks_each, own), **own}
        return cls(number, rows, timing, folder, batches, int(variables[THREADS]))


def recorded_plan(run: Path) -> RunPlan:
    """Return the plan of a run, composed again from the recipe and the overrides of its last start.

    Raises:
        UnusableRunError: the folder lacks the command or the settings of the run, or the recipe has other ones.
    """
    for file in (run / LOCK_FILE, run / SETTINGS_FILE):
        if not file.is_file():
            raise UnusableRunError(f"{file} is missing. {REMEDY}")
    command = shlex.split((run / LOCK_FILE).read_text(encoding="utf-8").partition(" UTC: ")[2])
    places = [command.index(option) + 1 for option in ("--config-dir", "--config-name") if option in command[:-1]]
    if len(places) < 2:
        raise UnusableRunError(f"{run / LOCK_FILE} names no recipe in {shlex.join(command)!r}. {REMEDY}")
    recipe = Path(command[places[0]]).resolve() / f"{command[places[1]].removesuffix('.yaml')}.yaml"
    try:
        plan, recorded = RunPlan.of(compose_training(recipe, command[places[1] + 1 :])), read_settings(run)
    except ConfigError as error:
        raise UnusableRunError(f"{run} is not read with its recipe {recipe}: {error} {REMEDY}") from error
    for key in SIZES:
        if (was := value_at(recorded, key)) != (value := plan.value(key)):
            raise UnusableRunError(f"{recipe} has {key}={value}, and {run} was started with {was}. {REMEDY}")
    return plan


def requests(tokens: Sequence[Sequence[int]], masks: Sequence[Sequence[int]]) -> list[list[Request]]:
    """Return the requests of each row in order.

    Args:
        masks: 1 for each token that the policy wrote.
    """
    found = []
    for ids, mask in zip(tokens, masks, strict=True):
        starts = [at for at in range(1, len(mask)) if mask[at] and not mask[at - 1]]
        ends = [next((at for at in range(start, len(mask)) if not mask[at]), len(mask)) for start in starts]
        found.append([(list(ids[:start]), end - start) for start, end in zip(starts, ends, strict=True)])
    return found


def pairs(lengths: Sequence[int]) -> int:
    """Return the number of pairs of a token and an earlier one or itself, in rows of some lengths."""
    return sum(length * (length + 1) // 2 for length in lengths)
