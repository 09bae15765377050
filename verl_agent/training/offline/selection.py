"""Selection of recorded episodes to train on, and their weights, from records and text alone."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from verl_agent.agents.base import first_action
from verl_agent.config.settings import AgentEnv
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError
from verl_agent.returns import reaches
from verl_agent.sections import Needs, OnResume, settings
from verl_agent.trace.labels import keep_labelled, read_labels
from verl_agent.trace.record import EpisodeRecord, TaskKey, env_label, task_key, to_episode
from verl_agent.trace.record_files import read_records
from verl_agent.trace.turn_record import TurnRecord
from verl_agent.types import Author, Episode, Message, StopReason

Weight = Literal["none", "reward", "task"]
RECORDED = Needs("episodes.records", instead="It names recorded episodes, such as the output of `verl-agent eval`.")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Paths = Annotated[list[str], BeforeValidator(_as_list)]
"""Files and folders of records; a single one may be given without a list."""
Authors = Annotated[list[Author], BeforeValidator(_as_list)]
"""Authors of replies; a single one may be given without a list."""
Tags = Annotated[list[str], BeforeValidator(_as_list)]
"""Tags of labelled episodes, those to leave out after a minus sign; a single one may be given without a list."""
NamedTask = tuple[str, str]
"""Name of an environment and id of a task. Unlike a `TaskKey` it is the same for all entries of a mixture, so that an
episode of a held-out task is found under every label."""


@settings("episodes", base="agent_sft")
class EpisodeSource:
    """Training data of `verl-agent sft`."""

    oracle: bool = True
    """True to train on the oracle's episodes of env.train_tasks, each with weight 1."""
    records: Annotated[Paths, OnResume("sft")] = Field(default_factory=list)
    """Recorded episodes to train on: files and folders of them."""
    min_reward: Annotated[float | None, OnResume("sft"), RECORDED] = None
    """Least return of a recorded episode; null to keep those that solved their task."""
    per_task: Annotated[Annotated[int, Field(ge=1)] | None, OnResume("sft"), RECORDED] = None
    """Most recorded episodes of a task, the best and then the shortest first; null for all."""
    weight: Annotated[Weight, OnResume("sft"), RECORDED] = "none"
    """Weight of the tokens of a recorded episode. `none`: 1. `reward`: its return divided by the one that solves the
    task, from 0 to 1, which is r(e, u, τ) of AgentEvol (arXiv 2406.04151, J_Evol). `task`: 1 divided by the number of
    kept episodes of its task, so that easy tasks do not dominate hard ones."""
    max_turns: Annotated[int, Field(ge=1)] | None = None
    """Turn limit that the oracle's episodes tell the model, with `agent.options.turns_left`; null without."""
    labels: Annotated[Tags, OnResume("sft"), RECORDED] = Field(default_factory=list)
    """Tags of recorded episodes (see `verl-agent view`): keep those with one of the tags, and leave those with a tag
    after a minus sign out (`-bad`). Empty to keep all."""
    authors: Annotated[Authors, RECORDED] = Field(default_factory=list)
    """Authors of the replies of recorded episodes to train on: `policy`, `person`, `oracle`, `overseer`. Empty for all
    replies of episodes in which no person intervened; others are only used if authors are named. A reply whose action
    was rejected is never trained on."""
    explored: Annotated[Mapping[str, Any], OnResume("sft")] = Field(default_factory=dict)
    """Further recorded episodes, selected by keys of this section of their own. `verl-agent evolve` sets it."""

    def __post_init__(self) -> None:
        if not self.oracle and not self.records:
            raise ConfigError(
                "episodes.oracle=false and episodes.records=[] leave nothing to train on. Set episodes.records to "
                "recorded episodes (for example, the output folder of `verl-agent eval`)."
            )
        if unread := {"oracle", "max_turns", "explored"} & set(self.explored):
            raise ConfigError(
                f"episodes.explored.{min(unread)} would do nothing: episodes.explored selects recorded episodes. "
                "Remove it."
            )


@dataclass(frozen=True, slots=True)
class ChosenEpisode:
    """Recorded episode to train on.

    Attributes:
        weight: factor of its tokens in the loss, > 0.
        learned: True for each turn whose reply is trained on.
    """

    record: EpisodeRecord
    weight: float
    learned: Sequence[bool]


def usable_records(
    paths: Sequence[str],
    key: str,
    held_out: frozenset[NamedTask] | None = None,
    labels: Sequence[str] = (),
    operated: bool = False,
) -> list[EpisodeRecord]:
    """Return the valid episodes with a reply that were not played to validate a run.

    Args:
        paths: files and folders of records.
        key: setting that names them, for messages.
        held_out: tasks that must not be trained on; None if that has been checked.
        labels: tags to keep and, after a minus sign, to leave out; empty to keep all.
        operated: also return episodes in which a person intervened, and those that a person ended.

    Raises:
        ConfigError: a path does not exist, a line is no record, no episode is usable, no episode has one of the tags,
            or an episode is of a held-out task or has no reward. An evaluation of an environment whose held-out tasks
            are not known is refused too.
    """
    try:
        recorded = list(read_records(paths))
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    _check_rated(recorded, key)
    usable = [
        record
        for record in recorded
        if record["purpose"] not in ("validation", "test") and record["turns"] and _usable(to_episode(record), operated)
    ]
    _check_evaluated(usable, key, held_out)
    leaked = {(record["env"], record["task"]) for record in usable} & (held_out or frozenset())
    if leaked:
        env, task = min(leaked)
        raise ConfigError(
            f"{key} holds episodes of {len(leaked)} held-out tasks, such as {task!r} of env {env!r}. Play the tasks of "
            "env.train_tasks and train on these, or choose another env.eval_tasks."
        )
    if not usable:
        raise ConfigError(
            f"{key}={list(paths)} has no episode to train on among {len(recorded)} recorded ones. Not used are "
            "validation episodes, episodes with an environment error, episodes without a reply and those in which a "
            "person intervened. Record others, or name episodes.authors or preference.pairs=edits to learn from people."
        )
    if not labels:
        return usable
    setting = f"{key.rpartition('.')[0]}.labels"
    return keep_labelled(usable, labels, read_labels(paths), setting)


def _check_rated(records: Sequence[EpisodeRecord], key: str) -> None:
    """Refuse imported episodes whose source states no reward."""
    if unrated := [record for record in records if record["stop"] == StopReason.UNRATED]:
        raise ConfigError(
            f"{key} holds {len(unrated)} episodes without a reward, such as one of task {unrated[0]['task']!r} of env "
            f"{unrated[0]['env']!r}: their source states none, or several scores. Import it again: verl-agent records "
            "import ... --score NAME to choose one of several, or --reward 1 to say what they earned."
        )


def _usable(episode: Episode, operated: bool) -> bool:
    if episode.operated:
        return operated and (episode.valid or episode.stop is StopReason.OPERATOR)
    return episode.valid


def _check_evaluated(records: Sequence[EpisodeRecord], key: str, held_out: frozenset[NamedTask] | None) -> None:
    """Refuse an evaluation of an environment whose held-out tasks are not known."""
    known = {env for env, _ in held_out or ()}
    for record in records:
        if held_out is not None and record["purpose"] == "evaluation" and record["env"] not in known:
            raise ConfigError(
                f"{key} holds an evaluation of env {record['env']!r}, whose held-out tasks this recipe does not name. "
                "Play episodes to train on with evaluation.purpose=collection, on tasks to train on."
            )


def select_episodes(
    records: Iterable[EpisodeRecord], settings: EpisodeSource, key: str = "episodes"
) -> list[ChosenEpisode]:
    """Keep rewarded episodes, each conversation once; the result does not depend on the order of the records.

    Of several records of one conversation, which may differ in rewards or reviews, the best is kept.

    Args:
        key: section of the settings, for messages.

    Returns:
        Episodes by environment and task, the best of each task first; may be empty.

    Raises:
        ConfigError: `weight=reward` with episodes whose task is solved by a return of 0 or less.
    """
    by_task: dict[TaskKey, dict[str, EpisodeRecord]] = defaultdict(dict)
    for record in records:
        if _rewarded(record, settings.min_reward) and any(learned_turns(record["turns"], settings.authors)):
            equal, told = by_task[task_key(record)], content_hash(record["messages"])
            other = equal.setdefault(told, record)
            if other is not record:
                equal[told] = min(other, record, key=lambda entry: (_rank(entry), content_hash(entry)))
    chosen: list[ChosenEpisode] = []
    for task in sorted(by_task):
        kept = sorted(by_task[task].values(), key=_rank)[: settings.per_task]
        _check_weight(kept, settings.weight, key)
        for record in kept:
            learned = learned_turns(record["turns"], settings.authors)
            chosen.append(ChosenEpisode(record, _weight(record, settings.weight, len(kept)), learned))
    return [episode for episode in chosen if episode.weight > 0]


def _check_weight(records: Sequence[EpisodeRecord], kind: Weight, key: str) -> None:
    """Refuse weights by return where no return is a share of that of a solved task."""
    wrong = [record for record in records if kind == "reward" and record["success_reward"] <= 0]
    if wrong:
        raise ConfigError(
            f"{key}.weight='reward' is not allowed for env {wrong[0]['env']!r}: a return of "
            f"{wrong[0]['success_reward']:g} solves task {wrong[0]['task']!r}, and no return is a share of it. "
            f"Allowed for {key}.weight: none, task."
        )


def learned_turns(turns: Sequence[TurnRecord], authors: Sequence[Author]) -> list[bool]:
    """Return True for each turn whose reply is trained on: one of an author, whose action was carried out."""
    return [
        (not authors or turn.get("author", "policy") in authors)
        and ("review" not in turn or turn["review"]["decision"] not in ("rejected", "ended"))
        for turn in turns
    ]


def check_agent(played: AgentEnv, records: Iterable[EpisodeRecord], key: str) -> str:
    """Check that the agent of a recipe reads the replies of recorded episodes of its environment.

    Imported episodes are not compared: their actions come from the source.

    Args:
        key: setting that names the records, for messages.

    Returns:
        A remark if prompts lack the instructions of the agent; else "".

    Raises:
        ConfigError: the agent finds no action in more than half of the replies that have one.
    """
    own = [one for one in records if one["env"] == played.env.name and "unknown" not in one]
    name, acted, refused = played.agent.name, 0, list[tuple[str, str]]()
    for record in own:
        agent = played.new_agent()  # it may have a state
        for reply in (turn["reply"] for turn in record["turns"] if turn["action"] is not None):
            results, acted = agent.read_reply(reply), acted + 1
            if first_action(results) is None:
                refused.append((reply, next((one.step.observation for one in results if one.step), "")))
    if len(refused) > acted / 2:
        reply, answer = refused[0]
        raise ConfigError(
            f"agent.name={name!r} finds no action in {len(refused)} of {acted} replies of {key}. It answers "
            f"{shorten(answer, 200)!r} to {shorten(reply)!r}. Set sections agent and env to those that played the "
            "episodes, or play others with these."
        )
    agent = played.new_agent()
    instruction = agent.instruction() if agent.instructions else ""
    without = sum(all(instruction not in message["content"] for message in prompt(one)) for one in own)
    return f"{without} of {len(own)} prompts of {key} lack the instructions of agent.name={name}" if without else ""


def count_by_environment(episodes: Iterable[ChosenEpisode]) -> dict[str, int]:
    """Count the episodes of each environment."""
    return dict(Counter(env_label(episode.record) for episode in episodes))


def conversation(record: EpisodeRecord) -> list[Message]:
    """Return the messages up to the last reply."""
    messages = list(record["messages"])
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def prompt(record: EpisodeRecord) -> list[Message]:
    """Return the messages before the first reply."""
    return list(record["messages"][: record["prompt_length"]])


def content_hash(content: object) -> str:
    """Return a short hash of JSON values, the same on every machine."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _rewarded(record: EpisodeRecord, min_reward: float | None) -> bool:
    return record["success"] if min_reward is None else reaches([record["reward"]], min_reward)


def _rank(record: EpisodeRecord) -> tuple[float, int, str]:
    """Return the key by which the best and then the shortest conversation comes first."""
    return -record["reward"], len(record["turns"]), content_hash(record["messages"])


def _weight(record: EpisodeRecord, kind: str, kept: int) -> float:
    if kind == "reward":
        return min(1.0, max(0.0, record["reward"] / record["success_reward"]))
    return 1.0 / kept if kind == "task" else 1.0
