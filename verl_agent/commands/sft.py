"""Learn from an oracle's or recorded episodes: `python -m verl_agent.commands.sft --config-dir DIR --config-name RECIPE`."""

import hydra
from omegaconf import DictConfig, OmegaConf

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.commands.hydra_main import launch
from verl_agent.config.settings import agent_settings, env_options
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import check_disjoint, sample_tasks, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.offline.run import Method, Plan
from verl_agent.offline.run import run as run_method
from verl_agent.offline.selection import (
    ChosenEpisode,
    EpisodeSource,
    conversation,
    count_by_environment,
    fingerprint,
    select_episodes,
    usable_records,
)
from verl_agent.rollout.oracle import demonstration_actions
from verl_agent.runs.console import exit_with
from verl_agent.runs.folder import SFT_IDENTITY, identity
from verl_agent.sections import section
from verl_agent.trace.metrics_log import LoggedStep
from verl_agent.types import TaskItem


def plan(config: DictConfig) -> Plan:
    """Check the environment, the tasks and the recorded episodes.

    Raises:
        ConfigError: they do not allow the run.
    """
    env, options = config.env, env_options(config)
    source: EpisodeSource = section("episodes", EpisodeSource, OmegaConf.to_container(config.episodes))
    tasks = select_tasks(env.name, env.train_tasks, options)
    held_out = select_tasks(env.name, env.eval_tasks, options)
    check_disjoint(env.name, env.train_tasks, env.eval_tasks, options)
    agent = make_agent(agent_settings(config), make_env(env.name, options).action_format)
    shown = drawn(tasks, config.data.train_max_samples) if source.oracle else []
    chosen = recorded(source, held_out)
    if source.records and not chosen:
        raise ConfigError(
            f"episodes.records={list(source.records)} hold no episode that is worth learning from: none solved its "
            "task, or reached episodes.min_reward. Play more tasks or more samples, or lower episodes.min_reward."
        )
    counts = ", ".join(f"{count} recorded of {name}" for name, count in count_by_environment(chosen).items())
    facts = identity(OmegaConf.to_container(config), SFT_IDENTITY, tasks)
    content = [[conversation(episode.record), episode.weight] for episode in chosen]
    return Plan(
        rows=oracle_rows(config, agent, shown)
        + sum(agent.context.segments(len(episode.record["turns"])) for episode in chosen),
        val_rows=validation_rows(config, agent),
        identity={"command": "sft", **facts, "recorded episodes": fingerprint(content)},
        summary=f"{len(shown)} episodes of the oracle" + (f", {counts}" if counts else ""),
    )


def recorded(source: EpisodeSource, held_out: list[TaskItem]) -> list[ChosenEpisode]:
    """The recorded episodes of a run.

    Raises:
        ConfigError: see `usable_records`.
    """
    if not source.records:
        return []
    tasks = frozenset((item.env, item.id) for item in held_out)
    return select_episodes(usable_records(source.records, "episodes.records", tasks), source)


def drawn(tasks: list[TaskItem], most: int) -> list[TaskItem]:
    """The tasks that are shown."""
    return sample_tasks(tasks, most) if most > 0 else tasks


def oracle_rows(config: DictConfig, agent: Agent, tasks: list[TaskItem]) -> int:
    """Rows that the oracle's episodes of the tasks make: several each where the agent edits the context."""
    if not agent.context.edits:
        return len(tasks)
    session = make_env(config.env.name, env_options(config))
    return sum(agent.context.segments(len(demonstration_actions(session, item))) for item in tasks)


def validation_rows(config: DictConfig, agent: Agent) -> int:
    """Rows to validate on, of the oracle's episodes.

    Raises:
        ConfigError: data.val_files names other tasks than env.eval_tasks.
    """
    if not config.data.val_files:
        return 0
    wanted = f"validation:{config.env.eval_tasks}"
    if config.data.val_files != wanted:
        raise ConfigError(f"data.val_files={config.data.val_files!r} is not allowed. Allowed: null, {wanted!r}.")
    tasks = select_tasks(config.env.name, config.env.eval_tasks, env_options(config))
    return oracle_rows(config, agent, drawn(tasks, config.data.val_max_samples))


def trainer() -> type:
    """The trainer's class."""
    from verl_agent.offline.sft_trainer import SupervisedTrainer

    return SupervisedTrainer


def state(logged: LoggedStep) -> str:
    """What is shown of a step."""
    return f"loss {logged.values['train/loss']:.3f}"


SFT = Method("agent_sft", "supervised training", plan, trainer, state)


def run(config: DictConfig) -> None:
    """Train to the end of a composed recipe, or go on from its last checkpoint.

    Raises:
        ConfigError: the run must not start.
    """
    run_method(config, SFT)


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.commands.sft`."""
    exit_with(run, config)


if __name__ == "__main__":
    launch(main, "agent_sft")
