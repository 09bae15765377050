"""Pairs of recorded episodes of one task, a better and a worse one, from records and text alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from verl_agent.envs.arena import SEAT
from verl_agent.errors import ConfigError
from verl_agent.returns import differs_by
from verl_agent.sections import Needs, OnResume, settings
from verl_agent.trace.record import EpisodeRecord, TaskKey, task_key
from verl_agent.trace.turn_record import TurnRecord
from verl_agent.training.offline.selection import (
    NamedTask,
    Paths,
    Tags,
    content_hash,
    conversation,
    prompt,
    usable_records,
)

CORRECTED = ("edited", "taken_over")
"""Decisions that replaced a reply of the policy by another one."""


def edited_replies(records: Iterable[EpisodeRecord]) -> list[tuple[EpisodeRecord, EpisodeRecord]]:
    """Return pairs of an edited and a proposed reply after the same messages, each as an episode that ends with it.

    The decision of the person orders them, not a return. Equal pairs count once, and the result does not depend on the
    order of the records.
    """
    pairs: dict[str, tuple[EpisodeRecord, EpisodeRecord]] = {}
    for record in records:
        for number, turn in enumerate(record["turns"]):
            if "review" not in turn or "proposed" not in turn or turn["review"]["decision"] not in CORRECTED:
                continue
            better, worse = _until(record, number, turn["reply"]), _until(record, number, turn["proposed"])
            if turn["reply"] != turn["proposed"]:
                pairs[content_hash([conversation(better), conversation(worse)])] = better, worse
    return [pair for _, pair in sorted(pairs.items(), key=lambda one: (task_key(one[1][0]), one[0]))]


def _until(record: EpisodeRecord, number: int, reply: str) -> EpisodeRecord:
    """Return the episode up to a turn, from 0, which has `reply` and no answer."""
    end = record["prompt_length"] + 2 * number
    last: TurnRecord = {**record["turns"][number], "reply": reply, "observation": None, "truncated_by": None}
    return {
        **record,
        "turns": [*record["turns"][:number], last],
        "messages": [*record["messages"][:end], {"role": "assistant", "content": reply}],
    }


@settings("preference", base="agent_dpo")
class PreferenceSettings:
    """Training data and loss of `verl-agent dpo`."""

    records: Annotated[Paths, OnResume("dpo")]
    """Recorded episodes to pair: files and folders of them."""
    min_gap: Annotated[Annotated[float, Field(gt=0)], OnResume("dpo"), Needs("preference.pairs", "returns")] = 0.5
    """Least difference between the returns of a pair, > 0, in units of the environment's reward; not used with `pairs:
    edits`."""
    per_task: Annotated[Annotated[int, Field(ge=1)] | None, OnResume("dpo")] = None
    """Most pairs of a task; null for all that use no episode twice."""
    val_share: Annotated[Annotated[float, Field(ge=0, lt=1)], OnResume("dpo")] = 0.0
    """Fraction of the tasks whose pairs are held out for validation, from 0 to below 1."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """Strength of the regularization towards the reference model, β of DPO (arXiv 2305.18290, equation 7), > 0."""
    nll_coef: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient of the mean negative log-probability of a token of the better episode in the loss, which keeps that
    episode from becoming less likely (arXiv 2404.19733, equation 2); 0 for plain DPO."""
    labels: Annotated[Tags, OnResume("dpo")] = Field(default_factory=list)
    """Tags of recorded episodes: keep those with one of the tags, and leave those with a tag after a minus sign out
    (`-bad`). Empty to keep all."""
    pairs: Literal["returns", "edits"] = "returns"
    """`returns`: whole episodes of one task, the better by their returns. `edits`: a reply that a person put in the
    place of the policy's, against the policy's, after the same messages; only these two are compared."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two episodes of one task with the same prompt.

    Attributes:
        better: episode with the higher return.
        worse: episode with the lower return.
        last_turn: True if both differ in their last reply alone, which a person edited; `worse` has the policy's.
    """

    better: EpisodeRecord
    worse: EpisodeRecord
    last_turn: bool = False

    def trained(self, side: EpisodeRecord) -> list[bool]:
        """Return True for each turn of a side whose reply the loss compares."""
        turns = len(side["turns"])
        return [not self.last_turn or number == turns for number in range(1, turns + 1)]

    @property
    def task(self) -> TaskKey:
        """Key of the task."""
        return task_key(self.better)

    @property
    def fingerprint(self) -> str:
        """Short hash of both conversations."""
        return content_hash([conversation(self.better), conversation(self.worse)])


def make_pairs(records: Iterable[EpisodeRecord], settings: PreferenceSettings) -> list[Pair]:
    """Pair the best episode of each task with the worst, the second best with the second worst, and so on.

    Seats of an arena have prompts of their own, so each is paired with itself.

    Equal conversations count once, with the best of their rewards, and no episode is in two pairs. The result does not
    depend on the order of the records.

    Raises:
        ConfigError: two episodes of a task begin with different prompts, or no pair can be made.
    """
    if settings.pairs == "edits":
        return _edit_pairs(records, settings)
    by_task: dict[tuple[TaskKey, str], dict[str, EpisodeRecord]] = defaultdict(dict)
    for record in records:
        task, seat = task_key(record), str(record["data"].get(SEAT, ""))
        equal, told = by_task[task, seat], content_hash(conversation(record))
        other = equal.setdefault(told, record)
        if other is not record:
            equal[told] = min(other, record, key=lambda entry: (-entry["reward"], content_hash(entry)))
    pairs: list[Pair] = []
    for (task, _), episodes in sorted(by_task.items()):
        ranked = [episodes[name] for name in sorted(episodes, key=lambda name: (-episodes[name]["reward"], name))]
        require_equal_prompts(task, ranked)
        matched = zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False)
        wide = [Pair(high, low) for high, low in matched if differs_by(high["reward"], low["reward"], settings.min_gap)]
        pairs += wide[: settings.per_task]
    if not pairs:
        played = sum(map(len, by_task.values()))
        raise ConfigError(
            f"preference.records={list(settings.records)} has no pair. It has {played} different episodes of "
            f"{len(by_task)} tasks, but no two of a task differ in return by preference.min_gap={settings.min_gap:g}. "
            "Play each task more often (evaluation.samples of `verl-agent eval`), or lower preference.min_gap."
        )
    return pairs


def pairable_records(settings: PreferenceSettings, held_out: frozenset[NamedTask] | None = None) -> list[EpisodeRecord]:
    """Return the records to pair; see `usable_records`."""
    edits = settings.pairs == "edits"
    return usable_records(settings.records, "preference.records", held_out, settings.labels, operated=edits)


def _edit_pairs(records: Iterable[EpisodeRecord], settings: PreferenceSettings) -> list[Pair]:
    """Return one pair for each reply that a person edited, at most `per_task` of a task."""
    pairs, count = list[Pair](), Counter[TaskKey]()
    for better, worse in edited_replies(records):
        pair = Pair(better, worse, last_turn=True)
        count[pair.task] += 1
        if settings.per_task is None or count[pair.task] <= settings.per_task:
            pairs.append(pair)
    if not pairs:
        raise ConfigError(
            f"preference.records={list(settings.records)} has no edited reply. Let a person edit replies "
            "(evaluation.approve with by: human, or `verl-agent control RUN attend`), or set preference.pairs=returns."
        )
    return pairs


def require_equal_prompts(task: TaskKey, episodes: Sequence[EpisodeRecord]) -> None:
    """Check that all episodes of a task have the same prompt, so that only their replies differ.

    Raises:
        ConfigError: two prompts differ.
    """
    prompts = {content_hash(prompt(record)) for record in episodes}
    if len(prompts) > 1:
        env, task_id = task
        raise ConfigError(
            f"preference.records hold episodes of task {task_id!r} of env {env!r} with {len(prompts)} different "
            "prompts. A pair must share its prompt: use records of one agent and one value of env.options."
        )


def split_pairs(pairs: Sequence[Pair], val_share: float) -> tuple[list[Pair], list[Pair]]:
    """Hold out the pairs of a fraction of the tasks, chosen by a hash of their names.

    Returns:
        Pairs to train on, and pairs to validate on; the two share no task.
    """
    tasks = sorted({pair.task for pair in pairs}, key=content_hash)
    held_out = set(tasks[: round(val_share * len(tasks))])
    return [pair for pair in pairs if pair.task not in held_out], [pair for pair in pairs if pair.task in held_out]
