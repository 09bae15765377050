"""Check that a turn limit by task or by group suits the groups of a run, and that waiting episodes have a session."""

from itertools import pairwise
from math import ceil, floor

from verl_agent.config.plan import RunPlan
from verl_agent.config.plan_parts import PARTIAL, SEPARATE, SYNC
from verl_agent.config.settings import RunEnv
from verl_agent.envs.hosts.slot import HOSTS
from verl_agent.errors import ConfigError
from verl_agent.horizon import Horizon, Schedule
from verl_agent.training.turn_limits import new_schedule, own_class


def check_schedule(run_env: RunEnv, samples: int, filters: bool, label: str = "") -> None:
    """Check that the schedule of turn limits suits the groups of a run.

    Args:
        samples: `rollout.n`.
        filters: `algorithm.filter_groups.enable`.
        label: name of the entry of a mixture; empty without one.

    Raises:
        ConfigError: groups have one episode, several seats or more episodes than a schedule keeps, the filter hides
            outcomes, a judge decides what is solved, or the model reads how many turns are left.
    """
    try:
        _check_groups(run_env, samples, filters)
    except ConfigError as error:
        if not label:
            raise
        raise ConfigError(f"env.mixture, {label}: {error}") from error


def _check_groups(run_env: RunEnv, samples: int, filters: bool) -> None:
    if filters and (learning := _learning(run_env.horizon)):
        raise ConfigError(
            f"{learning} is not allowed with algorithm.filter_groups.enable=true: the filter hides the groups that all "
            "succeed or all fail, from which limits follow. Set one of them to null or false."
        )
    horizon, env = run_env.horizon, run_env.env
    key = "horizon.deepen=true" if horizon.deepen else "horizon.per_task"
    if not (horizon.deepen or horizon.per_task):
        return
    if len(seats := getattr(run_env.live, "policy_seats", ())) > 1:
        raise ConfigError(
            f"{key} is not allowed with {len(seats)} seats that policies play (env.options.seats of {env.name!r}): a "
            "match has one turn limit. Leave it out, or give the other seats to scripts."
        )
    if (rule := horizon.per_task) and rule.rule == "signal" and rule.window < samples:
        raise ConfigError(
            f"horizon.per_task.window={rule.window} keeps fewer episodes of a task than a group has "
            f"(actor_rollout_ref.rollout.n={samples}), so the share of solved ones would be that of a part of a group. "
            f"Set it to {samples} or more."
        )
    if horizon.deepen and samples < 2:
        raise ConfigError(
            f"horizon.deepen=true with actor_rollout_ref.rollout.n={samples}: a group of one episode stops at its "
            "first success anyway. Set rollout.n to 2 or more, or horizon.deepen=false and one limit."
        )
    if horizon.deepen and run_env.judge.rubric is not None:
        raise ConfigError(
            "horizon.deepen=true is not allowed with judge.rubric: a group goes on until an episode has solved the "
            "task, and the judge grades episodes that have ended. Set horizon.deepen=false, or judge.rubric=null."
        )
    if horizon.deepen and run_env.new_agent().turns_left:
        raise ConfigError(
            "horizon.deepen=true with agent.options.turns_left=true: nobody knows how many turns are left before the "
            "group has played. Set one of them to false."
        )


def _learning(horizon: Horizon) -> str:
    """Return the setting of a schedule that learns from outcomes; empty without one.

    `horizon.adaptive` has a condition of its own in the table of conditions.
    """
    if horizon.per_task:
        return "horizon.per_task"
    own = own_class(horizon.schedule) if horizon.schedule else Schedule
    return "" if own.observe is Schedule.observe else f"horizon.schedule={horizon.schedule!r}"


def try_schedule(run_env: RunEnv, steps: int) -> None:
    """Call the schedule of another package as the run will, apart from what it learns.

    Raises:
        ConfigError: it fails for a training task or at a step, or its state cannot be saved.
    """
    schedule, items = new_schedule(run_env.horizon), run_env.tasks(run_env.env.train_tasks)
    for item in items:
        schedule.limit(1, item)
    for step in range(2, steps + 1):
        schedule.limit(step, items[0])
    schedule.observe([])
    schedule.saved()


SECTIONS = {PARTIAL: "colocate_async", SEPARATE: "separate_async"}
"""Section of `trainer.v1` that verl reads for each asynchronous mode."""


def check_places(plan: RunPlan, run_env: RunEnv) -> None:
    """Check that the hosts have a session for each episode that may wait in one.

    In an asynchronous run, episodes in flight wait for the engine during an update, and one that waits for a session
    meanwhile gets none. With `horizon.deepen`, episodes at the limit wait for the others of their group.

    With hosts in Ray actors and without `env.hosts.count`, the number of hosts is known to the cluster only, which
    `horizon.deepen` does not allow: episodes that wait for a session that others hold stop their groups. Otherwise each
    agent-loop worker has hosts of its own, and gets whole groups in turn (`verl_agent.training.dispatch`). After
    some steps of an asynchronous run, or where groups are replaced, a worker may have more groups in flight than
    another. Some of its groups then begin when others have ended.

    Raises:
        ConfigError: there are fewer sessions than episodes, their number is not known, or a session may be closed while
            its episode waits.
    """
    hosts, engine, samples, horizon = run_env.env.hosts, plan.engine, plan.batch.samples, run_env.horizon
    if engine.mode == SYNC and not horizon.deepen:
        return
    machines = plan.layout.nodes + (engine.nodes if engine.mode == SEPARATE else 0)
    in_ray = hosts.where == "ray" or (hosts.where == "auto" and machines > 1)
    if in_ray and horizon.deepen:
        _check_idle(run_env)
    if in_ray and hosts.count is None and not horizon.deepen:
        return
    batch, cause = plan.batch.tasks, "horizon.deepen=true"
    groups, recent = batch, batch
    if engine.mode != SYNC:
        cause = f"num_warmup_batches of trainer.v1.{SECTIONS[engine.mode]}"
        groups += floor(batch * plan.value(f"trainer.v1.{SECTIONS[engine.mode]}.num_warmup_batches"))
        recent *= plan.value("trainer.v1.sampler.max_off_policy_threshold") + 1
    share = run_env.weight / sum(other.weight for other in plan.envs)
    workers = 1 if in_ray else int(engine.workers)
    episodes = min(ceil(groups / workers), ceil(recent * share)) * samples
    sessions = run_env.live.hosting.bounded(hosts.sessions).sessions
    if in_ray and hosts.count is None:
        raise ConfigError(
            f"env.hosts.count=null with hosts of {run_env.label!r} in Ray actors and horizon.deepen=true: up to "
            f"{episodes} episodes wait for each other in their sessions, and the number of hosts is known at the start "
            f"only. Set env.hosts.count={ceil(episodes / sessions)} or more."
        )
    places = (hosts.count or HOSTS) * sessions
    if places < episodes:
        each = "" if in_ray else f" in each of actor_rollout_ref.rollout.agent.num_workers={workers}"
        raise ConfigError(
            f"env.hosts.count={hosts.count!r} and env.hosts.sessions={hosts.sessions!r} give {run_env.label!r} places "
            f"for {places} episodes{each}, but up to {episodes} are in flight (groups of "
            f"actor_rollout_ref.rollout.n={samples}, data.train_batch_size={batch} and {cause}). "
            f"Set env.hosts.count={ceil(episodes / sessions)} or more, or lower the others."
        )


def _check_idle(run_env: RunEnv) -> None:
    """Refuse sessions that Ray's hosts would close while their episodes wait for the slowest one of the group."""
    stages, env = run_env.horizon.stages, run_env.env
    most = max(high - low for low, high in pairwise([0, *stages])) * env.timeout_s
    if env.hosts.idle_s < most:
        raise ConfigError(
            f"env.hosts.idle_s={env.hosts.idle_s:g} with horizon.deepen=true: an episode waits in its session for "
            f"others of its group, in which the environment alone may take {most:g} s from one limit of "
            f"horizon.max_turns={list(stages)} to the next (env.timeout_s={env.timeout_s:g} a turn). Set "
            "env.hosts.idle_s to more than that, or a lower env.timeout_s."
        )
