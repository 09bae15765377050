"""Environments of the arms of a study, and on what the arms are compared."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_agent.config.algorithms import find_estimator, find_loss
from verl_agent.config.composing import resolved
from verl_agent.config.keys import value_at
from verl_agent.config.mixture import ENTRY_SECTIONS
from verl_agent.config.settings import RunEnv, read_run_env
from verl_agent.envs.arena import Arena
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import load_adapter
from verl_agent.envs.tasks import ids_in
from verl_agent.errors import ConfigError
from verl_agent.study.settings import Study, TinySettings
from verl_agent.trace.record_files import record_files
from verl_agent.training.preflight.schedules import check_schedule
from verl_agent.training.splits import holds_out
from verl_agent.training.turn_limits import own_class

EVALUATED = {
    "horizon.eval_max_turns": " If it is null, it is the last limit of an arm.",
    "env.train_tasks": " env.dev_tasks=auto takes tasks out of it.",
}
"""What makes evaluations differ, by key."""


def load_environment(name: str, runner: str) -> str:
    """Return the module of an adapter.

    Raises:
        ConfigError: it does not exist, or has no oracle that the small runner can imitate.
    """
    adapter = load_adapter(name)
    if runner == "tiny" and (adapter.demonstration, adapter.oracle) == (EnvAdapter.demonstration, EnvAdapter.oracle):
        raise ConfigError(f"env.name={name} has no oracle to imitate. Choose another one, or set runner: train.")
    return adapter.__module__


def study_env(config: Mapping[str, Any]) -> RunEnv:
    """Return the environment of a composed config.

    Raises:
        ConfigError: its sections have a value that is not allowed, or it has several environments.
    """
    if config["env"]["mixture"] is not None:
        raise ConfigError("env.mixture has several environments. Allowed in a study: one, given by env.name.")
    return read_run_env(resolved(config, ("env", *ENTRY_SECTIONS)))


def least_steps(config: Mapping[str, Any], env: RunEnv, study: Study) -> int:
    """Return the training steps of a budget if each episode lasts until the longest turn limit.

    Raises:
        ConfigError: a step has no episodes, or a run of `verl-agent train` has fewer steps or no evaluation.
    """
    sections = resolved(config, ("data", "actor_rollout_ref", "trainer", "algorithm"))
    episodes = 1
    for key in ("data.train_batch_size", "actor_rollout_ref.rollout.n"):
        if not isinstance(value := value_at(sections, key), int) or value < 1:
            raise ConfigError(f"{key}={value!r} is not allowed. Allowed: a whole number from 1.")
        episodes *= value
    budget, longest = study.budget_turns, max(env.horizon.stages)
    least, total = math.ceil(budget / (episodes * longest)), value_at(sections, "trainer.total_training_steps")
    plays_more = value_at(sections, "algorithm.filter_groups.enable")  # it replaces groups of equal returns
    plays_more |= issubclass(load_adapter(env.env.name), Arena)  # the limit is that of each seat
    frequency = value_at(sections, "trainer.test_freq")
    if study.runner == "train" and not (isinstance(frequency, int) and frequency >= 1):
        raise ConfigError(
            f"trainer.test_freq={frequency} evaluates no step of training. Allowed: a whole number from 1, the steps "
            "between two evaluations; a run ends at the first one after its budget."
        )
    if study.runner == "train" and isinstance(total, int) and total < least and not plays_more:
        raise ConfigError(
            f"trainer.total_training_steps={total} cannot spend study.budget_turns={budget}. Allowed: {least} or more, "
            f"since a step plays {episodes} episodes of at most {longest} turns; or a lower budget."
        )
    return least


def learning_rate(config: Mapping[str, Any]) -> float:
    """Return the learning rate of the policy.

    Raises:
        ConfigError: it is no number.
    """
    value = value_at(resolved(config, ("actor_rollout_ref",)), key := "actor_rollout_ref.actor.optim.lr")
    if not isinstance(value, int | float):
        raise ConfigError(f"{key}={value!r} is not allowed. Allowed: a number.")
    return value


def own_algorithms(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules of an estimator, a policy loss and a schedule that a composed config names by entry point.

    Raises:
        ConfigError: one does not exist.
    """
    schedule = config["horizon"]["schedule"]
    found = (
        find_estimator(str(config["algorithm"]["adv_estimator"])).function,
        find_loss(config["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"]),
        own_class(schedule) if schedule else None,
    )
    yield from (one.__module__ for one in found if one is not None)


def named_files(config: Mapping[str, Any], env: RunEnv) -> Iterator[str]:
    """Yield the files of tasks and of replayed episodes that a composed config names; a split is no file."""
    yield from (str(config["env"][key]) for key in ("train_tasks", "eval_tasks"))
    for source in env.horizon.replay.records if env.horizon.replay else ():
        yield from map(str, record_files(Path(source)))


def check_groups(config: Mapping[str, Any], env: RunEnv, runner: str) -> None:
    """Check that the schedule of turn limits suits the groups; the small runner filters none.

    Raises:
        ConfigError: see `check_schedule`.
    """
    sections = resolved(config, ("actor_rollout_ref", "algorithm"))
    filters = runner == "train" and bool(value_at(sections, "algorithm.filter_groups.enable"))
    check_schedule(env, value_at(sections, "actor_rollout_ref.rollout.n"), filters)


def check_batch(config: Mapping[str, Any], later_tasks: str | None) -> None:
    """Check that the training tasks of a composed config, and those of `tiny.later_tasks`, fill a step.

    Raises:
        ConfigError: they do not.
    """
    env, batch = read_run_env(config), config["data"]["train_batch_size"]
    for key, source in (("env.train_tasks", env.env.train_tasks), ("tiny.later_tasks", later_tasks)):
        if source is not None and (count := len(env.tasks(source, key))) < batch:
            raise ConfigError(
                f"{key}={source!r} has {count} tasks, fewer than data.train_batch_size={batch}. Lower it, or give more "
                "tasks."
            )


def check_small_model(of_all: TinySettings, own: TinySettings, env: RunEnv) -> None:
    """Check that what an arm sets of the small model has an effect.

    Raises:
        ConfigError: a new optimizer at each stage, but the turn limit never changes or has no stages; or later tasks
            that are no others.
    """
    horizon, changed = env.horizon, own.later_tasks != of_all.later_tasks
    if changed and own.later_tasks == env.env.train_tasks:
        raise ConfigError(
            f"tiny.later_tasks={own.later_tasks} has no effect: env.train_tasks is the same. Leave it out, or give "
            "other tasks."
        )
    if own.fresh_optimizer > of_all.fresh_optimizer and len(set(horizon.stages)) == 1 and not horizon.schedule:
        raise ConfigError(
            f"tiny.fresh_optimizer=true has no effect: horizon.max_turns={list(horizon.max_turns)} is one stage. Leave "
            "it out, or give several limits."
        )
    if own.fresh_optimizer and (horizon.deepen or horizon.per_task):
        key = "deepen" if horizon.deepen else "per_task"
        raise ConfigError(
            f"tiny.fresh_optimizer=true is not allowed with horizon.{key}: limits by task or group have no stages. "
            "Leave one of them out."
        )


def trains_on_tested(config: Mapping[str, Any], later_tasks: str | None) -> bool:
    """Return True if training and evaluation of a composed config share a split, or the id of a task in two files."""
    trained = {*named_tasks(config["env"]["train_tasks"]), *named_tasks(later_tasks)}
    return not trained.isdisjoint(named_tasks(config["env"]["eval_tasks"]))


def named_tasks(source: str | None) -> list[str]:
    """Return the ids in a file of tasks, or the name of a split."""
    if source is None:
        return []
    return ids_in(Path(source)) if Path(source).is_file() else [source]


def check_evaluated_alike(arms: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that arms, given with their `evaluation`, are evaluated on the same tasks within the same turns.

    Raises:
        ConfigError: they are not.
    """
    first, *others = arms
    for arm in others:
        for key in {**arms[first], **arms[arm]}:
            one, other = arms[first].get(key), arms[arm].get(key)
            if one != other:
                raise ConfigError(
                    f"arms {first} and {arm} are evaluated with {key}={one} and {other}, so their success cannot be "
                    f"compared. Set it to one value in the recipe or in all arms.{EVALUATED.get(key, '')}"
                )


def evaluation(one: RunEnv, runner: str) -> dict[str, Any]:
    """Return environment, turn limit and tasks of the evaluations, by key."""
    names = ["name", "options", "eval_tasks"]
    names += ["dev_tasks", *(["train_tasks"] if holds_out(one.env) else [])] if runner == "train" else []
    found = {f"env.{name}": getattr(one.env, name) for name in names}
    return {**found, "horizon.eval_max_turns": one.horizon.turns_for_evaluation()}
