"""Supervised training on the oracle's episodes, on recorded ones, or on both."""

from omegaconf import DictConfig, OmegaConf

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.config.settings import agent_settings, env_options
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import check_disjoint, sample_tasks, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.rollout.oracle import demonstration_actions
from verl_agent.runs.identity import TASK_IDS, task_ids
from verl_agent.sections import section
from verl_agent.trace.metrics_log import LoggedStep
from verl_agent.training.offline.run import Method, RunPlan
from verl_agent.training.offline.run import run as run_method
from verl_agent.training.offline.selection import (
    ChosenEpisode,
    EpisodeSource,
    conversation,
    count_by_environment,
    fingerprint,
    learned_turns,
    select_episodes,
    usable_records,
)
from verl_agent.types import TaskItem


def plan(config: DictConfig) -> RunPlan:
    """Check the environment, the tasks and the recorded episodes.

    Raises:
        ConfigError: a setting of `env`, `agent` or `episodes` is not allowed, or no episode is left.
    """
    env, options = config.env, env_options(config)
    source: EpisodeSource = section("episodes", EpisodeSource, OmegaConf.to_container(config.episodes))
    tasks = select_tasks(env.name, env.train_tasks, options)
    held_out = select_tasks(env.name, env.eval_tasks, options)
    check_disjoint(env.name, env.train_tasks, env.eval_tasks, options)
    agent = make_agent(agent_settings(config), make_env(env.name, options).action_format)
    check_turn_limit(source, agent, demonstrates=source.oracle or bool(config.data.val_files))
    demonstrated = sample(tasks, config.data.train_max_samples) if source.oracle else []
    chosen = recorded(source, held_out)
    if source.records and not chosen:
        raise ConfigError(
            f"episodes.records={list(source.records)} has no episode to train on: none solved its task, or none "
            "reached episodes.min_reward. Play more tasks or more samples, or lower episodes.min_reward."
        )
    counts = ", ".join(f"{count} recorded of {name}" for name, count in count_by_environment(chosen).items())
    learned = [learned_turns(episode.record["turns"], source.authors) for episode in chosen]
    content = [
        [conversation(one.record), one.weight, *_unless_all(turns)] for one, turns in zip(chosen, learned, strict=True)
    ]
    return RunPlan(
        rows=oracle_rows(config, agent, demonstrated) + sum(agent.context.segments_of(turns) for turns in learned),
        val_rows=validation_rows(config, agent),
        facts={TASK_IDS: task_ids(tasks), "recorded episodes": fingerprint(content)},
        summary=f"{len(demonstrated)} episodes of the oracle" + (f", {counts}" if counts else ""),
    )


def check_turn_limit(source: EpisodeSource, agent: Agent, demonstrates: bool) -> None:
    """Check that demonstrations have a turn limit if the agent tells the turns left, and only then.

    Args:
        source: section `episodes`.
        agent: agent that renders the demonstrations.
        demonstrates: True if the oracle's episodes are used.

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
    """Return the recorded episodes to learn from.

    Raises:
        ConfigError: see `usable_records`.
    """
    if not source.records:
        return []
    tasks = frozenset((item.env, item.id) for item in held_out)
    operated = bool(source.authors)
    usable = usable_records(source.records, "episodes.records", tasks, source.labels, operated)
    return select_episodes(usable, source)


def _unless_all(learned: list[bool]) -> list[list[bool]]:
    """Return the turns to learn from, for the fingerprint of the data, unless they are all turns."""
    return [] if all(learned) else [learned]


def sample(tasks: list[TaskItem], max_samples: int) -> list[TaskItem]:
    """Sample tasks by a stable hash of their ids; all tasks if `max_samples` is not above 0."""
    return sample_tasks(tasks, max_samples) if max_samples > 0 else tasks


def oracle_rows(config: DictConfig, agent: Agent, tasks: list[TaskItem]) -> int:
    """Count the rows of the oracle's episodes: one an episode, or one a segment if the agent edits the context."""
    if not agent.context.edits:
        return len(tasks)
    session = make_env(config.env.name, env_options(config))
    return sum(agent.context.segments(len(demonstration_actions(session, item))) for item in tasks)


def validation_rows(config: DictConfig, agent: Agent) -> int:
    """Count the rows to validate on, which are the oracle's episodes of `env.eval_tasks`.

    Raises:
        ConfigError: `data.val_files` names other tasks.
    """
    if not config.data.val_files:
        return 0
    allowed = f"validation:{config.env.eval_tasks}"
    if config.data.val_files != allowed:
        raise ConfigError(f"data.val_files={config.data.val_files!r} is not allowed. Allowed: null, {allowed!r}.")
    tasks = select_tasks(config.env.name, config.env.eval_tasks, env_options(config))
    return oracle_rows(config, agent, sample(tasks, config.data.val_max_samples))


def trainer() -> type:
    """Import verl and return the class of the trainer."""
    from verl_agent.training.offline.sft_trainer import SupervisedTrainer

    return SupervisedTrainer


def state(logged: LoggedStep) -> str:
    """Format a logged step for the progress bar."""
    return f"loss {logged.values['train/loss']:.3f}"


SFT = Method("sft", "agent_sft", "supervised training", plan, trainer, state)


def run(config: DictConfig) -> None:
    """Train on episodes; see `verl_agent.training.offline.run.run`."""
    run_method(config, SFT)
