"""Checks of a run of reinforcement learning before its start; each fails with a clear error."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from verl_agent.agents.registry import check_retries
from verl_agent.config.algorithms import find_loss
from verl_agent.config.plan import RunPlan
from verl_agent.config.settings import RunEnv
from verl_agent.envs.arena import Arena
from verl_agent.envs.settings import AUTO
from verl_agent.envs.tasks import check_disjoint
from verl_agent.errors import ConfigError
from verl_agent.platform.detect import use_cpu_device
from verl_agent.runs.folder import check_resume
from verl_agent.training.preflight.computation import check_computation
from verl_agent.training.preflight.condition_table import CONDITIONS
from verl_agent.training.preflight.conditions import check_conditions
from verl_agent.training.preflight.lengths import check_critic, check_micro_batches, check_shares
from verl_agent.training.preflight.loggers import check_loggers
from verl_agent.training.preflight.machine import check_installation, check_machine
from verl_agent.training.preflight.megatron import MEGATRON_CONDITIONS, check_megatron
from verl_agent.training.preflight.prompts import check_lengths, check_prompts
from verl_agent.training.preflight.replay import check_replay
from verl_agent.training.preflight.schedules import check_places, check_schedule, try_schedule
from verl_agent.training.preflight.teacher import check_teacher
from verl_agent.training.seats import check_comparison
from verl_agent.training.splits import validates_on_test

logger = logging.getLogger(__name__)


def check_plan(plan: RunPlan, report: Callable[[str], None] = logger.info) -> RunPlan:
    """Check a plan, and return it with the folders of its models.

    A new check belongs into `check_settings` or `check_models`, which `verl-agent plan` runs, too; here are only those
    of the machine that trains.

    Raises:
        ConfigError: a setting would make the run fail later.
    """
    on_cpu = use_cpu_device()
    if plan.on_cpu != on_cpu:
        raise ConfigError(
            "this recipe is for a GPU, and the machine has none. Choose a recipe whose name ends with _cpu."
            if on_cpu
            else "this recipe is for the CPU, and the machine has an accelerator. To train on the CPU anyway, set "
            "VERL_PLATFORM=cpu and use the packages of `make setup DEVICE=cpu`."
        )
    check_settings(plan)
    check_installation(plan.trained, plan.layout, plan.engine.name)
    plan = plan.located()
    check_lengths(plan, report)
    check_machine(plan, report)
    check_models(plan, report)
    return plan


def check_elsewhere(plan: RunPlan, has_models: bool) -> None:
    """Check all of a plan that does not depend on the machine that trains, as the start of its run does.

    Args:
        has_models: the files of the policy are on this machine; otherwise the other models are only looked for.

    Raises:
        ConfigError: the run would not start.
    """

    def ignore(line: str) -> None:
        """Drop a line, which the start of the run prints."""

    check_loggers(plan.schedule.loggers)
    check_resume(plan.schedule, plan.actor.model_key)
    plan = choose_dev_tasks(plan, {}, ignore)
    check_settings(plan)
    if not has_models:
        for other in (plan.critic, plan.teacher):
            if other and other.path != plan.actor.path:
                other.located()
        return
    plan = plan.located()
    check_lengths(plan, ignore)
    check_models(plan, ignore)


def check_settings(plan: RunPlan) -> None:
    """Check settings, environments and tasks, for which neither models nor the machine that trains are needed.

    Raises:
        ConfigError: a setting would make the run fail later.
    """
    batch, estimation = plan.batch, plan.estimation
    check_conditions(plan.values, (*CONDITIONS, *MEGATRON_CONDITIONS))
    if plan.schedule.test_best and all(validates_on_test(one.env) for one in plan.envs):
        raise ConfigError(
            "trainer.test_best=True has no effect: validation plays env.eval_tasks already. Set env.dev_tasks to other "
            "tasks, or trainer.test_best=false."
        )
    for run_env in plan.envs:
        check_environment(run_env, plan.envs)
        run_env.judge.check(plan.judges)
        check_comparison(estimation.name, batch.samples, batch.val_samples, run_env, estimation.filters)
        check_schedule(run_env, batch.samples, estimation.filters, "" if len(plan.envs) == 1 else run_env.label)
        check_places(plan, run_env)
    find_loss(estimation.loss)  # imports that of another package
    for run_env in (one for one in plan.envs if one.horizon.schedule):
        try_schedule(run_env, int(plan.schedule.steps or 0))
    check_micro_batches(plan)
    check_shares(plan.envs, batch.tasks, batch.most)


def check_models(plan: RunPlan, report: Callable[[str], None]) -> None:
    """Check the models of a located plan, and that prompts and solved episodes suit the policy.

    Raises:
        ConfigError: a model does not suit the run.
    """
    for model in () if plan.actor.on_megatron else plan.trained:
        section, may_be_random = {**model.model, "path": model.path}, model is plan.critic
        check_computation(model.model_key, section, plan.lengths.episode, may_be_random=may_be_random)
    for run_env in plan.envs:
        check_prompts(plan, run_env, report)
        check_replay(plan, run_env, report)
    if plan.critic:
        check_critic(plan.critic.path, plan.actor.path)
    if plan.teacher:
        check_teacher(plan.teacher.path, plan.actor, plan.lengths)
    if plan.actor.on_megatron:
        check_megatron(plan.trained, plan.on_cpu)


def choose_dev_tasks(plan: RunPlan, earlier: Mapping[str, Any], report: Callable[[str], None]) -> RunPlan:
    """Replace `env.dev_tasks: auto` by null where no checkpoint is chosen, or where the run has trained on all tasks.

    Args:
        earlier: settings that the run began with; empty for a new run.
    """
    env, began = plan.values["env"], earlier.get("env")
    if env.get("dev_tasks") != AUTO:
        return plan
    every, total = plan.schedule.test_every, plan.schedule.steps
    chooses = not (isinstance(every, int) and isinstance(total, int)) or 0 < every < total
    trains_on_all = began is not None and began.get("dev_tasks") is None
    if trains_on_all and chooses:
        report("env.dev_tasks stays null, as this run began: it trains on all of env.train_tasks")
    if trains_on_all or (began is None and not chooses):
        changed = RunPlan.of({**plan.values, "env": {**env, "dev_tasks": None}})
        return replace(changed, schedule=plan.schedule)
    return plan


def check_environment(run_env: RunEnv, envs: Sequence[RunEnv]) -> None:
    """Check the environment's name, options and tasks.

    No held-out task is trained on, and no development task is trained or tested on by an entry of the same run.
    """
    env = run_env.env
    run_env.new_agent()
    check_retries(run_env.agent, run_env.live)
    if run_env.judge.rubric is not None and isinstance(run_env.live, Arena) and len(run_env.live.policy_seats) > 1:
        raise ConfigError(f"judge.rubric is not allowed in {env.name}: the seats of a game share its reward.")
    train = run_env.tasks(env.train_tasks, "env.train_tasks")
    for other in envs:
        if other.env.name == env.name and not other.env.overlap:
            sources = {"env.train_tasks": env.train_tasks, "env.eval_tasks": other.env.eval_tasks}
            check_disjoint(train, run_env.tasks(other.env.eval_tasks, "env.eval_tasks"), sources)
            if env.dev_tasks is None or env.dev_tasks == AUTO:
                continue  # tasks of `auto` are training tasks of `run_env`, and held out of those of `other`
            null = "Choose splits that do not overlap, or set env.dev_tasks=null to validate on env.eval_tasks."
            dev = run_env.tasks(env.dev_tasks, "env.dev_tasks")
            for source, key in ((other.env.train_tasks, "env.train_tasks"), (other.env.eval_tasks, "env.eval_tasks")):
                check_disjoint(dev, run_env.tasks(source, key), {"env.dev_tasks": env.dev_tasks, key: source}, null)
