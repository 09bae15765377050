"""Pair recorded episodes of one task, a better with a worse one, for preference learning.

Knows records and text, neither tokens nor tensors.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verl_agent.errors import ConfigError
from verl_agent.offline.selection import TaskKey, conversation, fingerprint, prompt
from verl_agent.trace.record import EpisodeRecord


@dataclass(frozen=True, slots=True)
class PreferenceSettings:
    """Section `preference`.

    Attributes:
        records: recorded episodes to pair: files and folders of them.
        min_gap: least difference between the returns of a pair, > 0, in the environment's own units.
        per_task: most pairs of a task; null for as many as can be made without using an episode twice.
        val_share: share of the tasks, 0 to below 1, whose pairs are held out to validate.
        beta: strength of the pull towards the reference model, β of equation 7 of DPO (arXiv 2305.18290), > 0.
        nll_coef: factor of the mean negative log-probability of a token of the better episode, added to the loss, so
            that it does not become less likely itself (equation 2 of arXiv 2404.19733); 0 for plain DPO.
    """

    records: Sequence[str]
    min_gap: float = 0.5
    per_task: int | None = None
    val_share: float = 0.0
    beta: float = 0.1
    nll_coef: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.records, str):
            object.__setattr__(self, "records", [self.records])
        for name in ("min_gap", "beta"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"preference.{name} must be > 0, got {getattr(self, name)}.")
        if self.per_task is not None and self.per_task < 1:
            raise ConfigError(f"preference.per_task must be >= 1 or null, got {self.per_task}.")
        if not 0 <= self.val_share < 1:
            raise ConfigError(f"preference.val_share must be at least 0 and below 1, got {self.val_share}.")
        if self.nll_coef < 0:
            raise ConfigError(f"preference.nll_coef must be >= 0, got {self.nll_coef}.")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two episodes of one task that begin with the same prompt.

    Attributes:
        better: the one with the higher return.
        worse: the other one.
    """

    better: EpisodeRecord
    worse: EpisodeRecord

    @property
    def task(self) -> TaskKey:
        """Environment and id of their task."""
        return self.better["env"], self.better["task"]

    @property
    def fingerprint(self) -> str:
        """A short hash of both conversations."""
        return fingerprint([conversation(self.better), conversation(self.worse)])


def make_pairs(records: Iterable[EpisodeRecord], settings: PreferenceSettings) -> list[Pair]:
    """Pair the best episode of each task with the worst, the second best with the second worst, and so on.

    Conversations that occur more than once count once; no episode is in two pairs. The result does not depend on the
    order of the records.

    Raises:
        ConfigError: two episodes of a task begin with different prompts, or no pair can be made.
    """
    by_task: dict[TaskKey, dict[str, EpisodeRecord]] = defaultdict(dict)
    for record in records:
        by_task[record["env"], record["task"]].setdefault(fingerprint(conversation(record)), record)
    pairs: list[Pair] = []
    for task, episodes in sorted(by_task.items()):
        ranked = [episodes[name] for name in sorted(episodes, key=lambda name: (-episodes[name]["reward"], name))]
        check_prompts(task, ranked)
        matched = zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False)
        wide = [Pair(high, low) for high, low in matched if high["reward"] - low["reward"] >= settings.min_gap]
        pairs += wide[: settings.per_task]
    if not pairs:
        played = sum(map(len, by_task.values()))
        raise ConfigError(
            f"preference.records={list(settings.records)} give no pair: none of {len(by_task)} tasks has two episodes, "
            f"of {played} different ones, whose returns differ by preference.min_gap={settings.min_gap:g}. Play each "
            "task more often (evaluation.samples of `verl-agent eval`), or lower the gap."
        )
    return pairs


def check_prompts(task: TaskKey, episodes: Sequence[EpisodeRecord]) -> None:
    """All episodes of a task were asked the same, so that only replies tell them apart.

    Raises:
        ConfigError: they were not.
    """
    prompts = {fingerprint(prompt(record)) for record in episodes}
    if len(prompts) > 1:
        env, task_id = task
        raise ConfigError(
            f"preference.records hold episodes of task {task_id!r} of env {env!r} with {len(prompts)} different "
            "prompts. A pair must share its prompt: give records of one agent and one setting of env.options."
        )


def split_pairs(pairs: Sequence[Pair], val_share: float) -> tuple[list[Pair], list[Pair]]:
    """Hold out the pairs of a share of the tasks, chosen by a hash of their names.

    Returns:
        Pairs to train on, and pairs to validate on; the two share no task.
    """
    tasks = sorted({pair.task for pair in pairs}, key=fingerprint)
    held_out = set(tasks[: round(val_share * len(tasks))])
    return [pair for pair in pairs if pair.task not in held_out], [pair for pair in pairs if pair.task in held_out]


def first(pairs: list[Pair], most: int) -> list[Pair]:
    """The first pairs, by environment and task; all where `most` is not above 0 (`data.train_max_samples`)."""
    return pairs[:most] if most > 0 else pairs
