"""Step of a training run on a CPU, as its folder records it: rows of tokens, seconds, and sizes of batches."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq

Row = TypeVar("Row")
Request = tuple[list[int], int]
"""Tokens that the engine reads, and the number that it writes."""
REMEDY = (
    "Run it again with trainer.save_freq=1, trainer.v1.sampler.sampler_kwargs.skip_uniform=false, "
    "episode.record_tokens.every=1 and an episode.record_tokens.groups of at least data.train_batch_size, or use "
    "`make bench-roofline`."
)


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
        """Return the rows of each optimizer step of an epoch, in the order of the rows."""
        return [rows[start : start + self.mini] for start in range(0, len(rows), self.mini)]


@dataclass(frozen=True, slots=True)
class Step:
    """Recorded step of a run.

    Attributes:
        number: training step, from 1.
        timing: seconds by name, verl's `timing_s/*`.
        model: folder of a checkpoint's model.
        threads: threads of the run's processes.
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
        if not (run / "run.json").is_file():
            raise UnusableRunError(f"{run / 'run.json'} is missing. {REMEDY}")
        config = json.loads((run / "run.json").read_text())
        policy, tasks, rows = config["actor_rollout_ref"], config["data"]["train_batch_size"], Rows.of(files[number])
        if len(rows.tokens) < (episodes := tasks * policy["rollout"]["n"]):
            raise UnusableRunError(
                f"{files[number]} has {len(rows.tokens)} of the step's {episodes} episodes. {REMEDY}"
            )
        batches = Batches(
            mini=policy["actor"]["ppo_mini_batch_size"] * policy["rollout"]["n"],
            epochs=policy["actor"]["ppo_epochs"],
            micro=logged_setting(run, "ppo_micro_batch_size_per_gpu"),
            scored=logged_setting(run, "log_prob_micro_batch_size_per_gpu"),
        )
        timing = {name.partition("/")[2]: value for name, value in logged.items() if name.startswith("timing_s/")}
        return cls(number, rows, timing, folder, batches, logged_setting(run, "OMP_NUM_THREADS"))


def logged_setting(run: Path, name: str) -> int:
    """Return a number that the log of a run shows in its settings, and `run.json` lacks.

    Raises:
        UnusableRunError: the log does not show it.
    """
    for file in sorted((run / "logs").glob("*.log"), reverse=True):
        if found := re.search(rf"'{name}': '?(\d+)", file.read_text(errors="replace")):
            return int(found[1])
    raise UnusableRunError(f"{run / 'logs'} has no log that shows {name}. {REMEDY}")


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
