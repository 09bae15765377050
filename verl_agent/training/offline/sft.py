"""Supervised training on the oracle's episodes, on recorded ones, or on both."""

from collections.abc import Sequence
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.config.plan import OfflinePlan
from verl_agent.config.settings import AgentEnv
from verl_agent.envs.tasks import check_disjoint, sample_tasks, task_contents, task_ids
from verl_agent.errors import ConfigError
from verl_agent.rollout.oracle import demonstration_actions
from verl_agent.runs.identity import TASK_CONTENTS, TASK_IDS
from verl_agent.sections import section
from verl_agent.trace.record import TaskKey, task_key
from verl_agent.training.offline.plan import Rows, check_files
from verl_agent.training.offline.run import Method
from verl_agent.training.offline.selection import (
    ChosenEpisode,
    EpisodeSource,
    NamedTask,
    check_agent,
    content_hash,
    conversation,
    count_by_environment,
    select_episodes,
    usable_records,
)
from verl_agent.types import TaskItem


def episode_rows(plan: OfflinePlan) -> Rows:
    """Check the environment, the tasks and the recorded episodes.

    Raises:
        ConfigError: a setting of `env`, `agent` or `episodes` is not allowed, or no episode is left.
    """
    played, env, batch = plan.played, plan.played.env, plan.batch
    source = section("episodes", EpisodeSource, plan.value("episodes"))
    check_files(batch, f"train:{env.train_tasks}", f"validation:{env.eval_tasks}")
    tasks, held_out = played.tasks(env.train_tasks), played.tasks(env.eval_tasks)
    check_disjoint(tasks, held_out, {"env.train_tasks": env.train_tasks, "env.eval_tasks": env.eval_tasks})
    agent = played.new_agent()
    check_turn_limit(source, agent, demonstrates=source.oracle or bool(batch.val_files))
    demonstrated = sampled(tasks, batch.most) if source.oracle else []
    validated = sampled(held_out, batch.most_val) if batch.val_files else []
    chosen = recorded(source, held_out)
    remark = check_agent(played, [one.record for one in chosen], "episodes.records")
    counts = ", ".join(f"{count} recorded of {name}" for name, count in count_by_environment(chosen).items())
    content = [[conversation(one.record), one.weight, *_unless_all(one.learned)] for one in chosen]

    def datasets(encoder: Any) -> tuple[Any, Any]:
        from verl_agent.training.offline.encoding import weighted

        train, validation = (
            [row for item in items for row in weighted(encoder.demonstrate(item, source.max_turns or 1))]
            for items in (demonstrated, validated)
        )
        for one in chosen:
            train += weighted(encoder.encode(one.record, one.learned), one.weight)
        return train, validation or None

    return Rows(
        count=oracle_rows(played, agent, demonstrated) + sum(agent.context.sample_count(one.learned) for one in chosen),
        val_count=oracle_rows(played, agent, validated),
        datasets=datasets,
        facts={
            TASK_IDS: task_ids(tasks),
            TASK_CONTENTS: task_contents(tasks),
            "recorded episodes": content_hash(content),
        },
        summary=f"{len(demonstrated)} episodes of the oracle"
        + (f", {counts}" if counts else "")
        + (f"; {remark}" if remark else ""),
        recorded=frozenset((one.record["env"], one.record["task"]) for one in chosen),
    )


def check_turn_limit(source: EpisodeSource, agent: Agent, demonstrates: bool) -> None:
    """Check that demonstrations have a turn limit if the agent tells the turns left, and only then.

    Raises:
        ConfigError: the limit is missing, or nothing reads it.
    """
    if demonstrates and agent.turns_left and source.max_turns is None:
        raise ConfigError(
            "agent.options.turns_left=true tells the turns left, and the oracle's episodes have no turn limit. Set "
            "episodes.max_turns to horizon.max_turns of the training that follows."
        )
    if source.max_turns is not None and not (demonstrates and agent.turns_left):
        raise ConfigError(
            f"episodes.max_turns={source.max_turns} is not read without agent.options.turns_left=true and the "
            "oracle's episodes. Set it to null."
        )


def recorded(source: EpisodeSource, held_out: list[TaskItem]) -> list[ChosenEpisode]:
    """Return the recorded episodes to learn from: those of the section, and further ones of `explored`."""
    tasks = frozenset((item.env, item.id) for item in held_out)
    chosen = _selected(source, "episodes", tasks)
    if not source.explored:
        return chosen
    key = "episodes.explored"
    further = section(key, EpisodeSource, {"oracle": False, **source.explored})
    known = {_told(one) for one in chosen}
    return [*chosen, *(one for one in _selected(further, key, tasks) if _told(one) not in known)]


def _selected(source: EpisodeSource, key: str, held_out: frozenset[NamedTask]) -> list[ChosenEpisode]:
    if not source.records:
        return []
    usable = usable_records(source.records, f"{key}.records", held_out, source.labels, bool(source.authors))
    chosen = select_episodes(usable, source, key)
    if not chosen:
        raise ConfigError(
            f"{key}.records={list(source.records)} has no episode to train on: none solved its task, or none "
            f"reached {key}.min_reward. Play more tasks or more samples, or lower {key}.min_reward."
        )
    return chosen


def _told(one: ChosenEpisode) -> tuple[TaskKey, str]:
    """Return the task and the conversation of an episode, which is trained on once."""
    return task_key(one.record), content_hash(one.record["messages"])


def _unless_all(learned: Sequence[bool]) -> list[Sequence[bool]]:
    """Return the turns to learn from, for the fingerprint of the data, unless they are all turns."""
    return [] if all(learned) else [learned]


def sampled(tasks: list[TaskItem], max_samples: int) -> list[TaskItem]:
    """Sample tasks by a stable hash of their ids; all tasks if `max_samples` is not above 0."""
    return sample_tasks(tasks, max_samples) if max_samples > 0 else tasks


def oracle_rows(played: AgentEnv, agent: Agent, tasks: list[TaskItem]) -> int:
    """Count the rows of the oracle's episodes: one an episode, or one a segment if the agent edits the context."""
    if not agent.context.edits:
        return len(tasks)
    return sum(agent.context.sample_count([True] * len(demonstration_actions(played.live, item))) for item in tasks)


TRAINER = "verl_agent.training.offline.sft_trainer:SupervisedTrainer"
SFT = Method("sft", "agent_sft", "supervised training", episode_rows, TRAINER, ["loss"])
