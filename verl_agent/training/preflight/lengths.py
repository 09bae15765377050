"""Check that the batches of a training run divide, and that tasks and critic suffice."""

import math
from collections.abc import Sequence

from verl_agent.config.mixture import tasks_per_batch
from verl_agent.config.plan import RunPlan
from verl_agent.config.plan_parts import TrainedModel
from verl_agent.config.settings import RunEnv
from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_config, load_tokenizer
from verl_agent.training.splits import holds_out, split_tasks


def check_micro_batches(plan: RunPlan) -> None:
    """Check that the rows of a step divide among the ranks and into micro batches, in passes not packed by tokens."""
    samples, ranks = plan.batch.samples, {one.key: data_parallel(one, plan.layout.ranks) for one in plan.trained}
    part, widest = math.gcd(*(one.mini_tasks for one in plan.trained)) * samples, max(ranks.values())
    if part % math.lcm(*ranks.values()):
        given = ", ".join(f"{one.key}.ppo_mini_batch_size={one.mini_tasks}" for one in plan.trained)
        raise ConfigError(
            f"{given} with actor_rollout_ref.rollout.n={samples} makes parts of {part} episodes, which {widest} ranks "
            "cannot split evenly. Choose sizes whose greatest common divisor times rollout.n is a multiple of ranks."
        )
    rows, *of_critic = (one.mini_tasks * samples // ranks[one.key] for one in plan.trained)  # verl fills up steps
    checks = [] if plan.estimation.bypass else [(plan.log_probs, rows)]
    checks += [(plan.reference, rows)] if plan.estimation.has_reference else []
    checks += [(one.passes, each) for one, each in zip(plan.trained, [rows, *of_critic], strict=True)]
    for passes, each in checks:
        if not passes.packed and passes.rows and each % int(passes.rows):
            raise ConfigError(
                f"{passes.key}={passes.rows} does not divide the {each} episodes of a mini-batch on each GPU "
                "(ppo_mini_batch_size * rollout.n). Choose a divisor."
            )


def data_parallel(model: TrainedModel, ranks: int) -> int:
    """Return the number of ranks that split the rows of a batch; the others share the work on the same rows."""
    shared = math.prod(model.ways.values())
    if ranks % shared:
        given = ", ".join(f"{name}={size}" for name, size in model.ways.items() if size > 1)
        raise ConfigError(
            f"{given} needs groups of {shared} GPUs, and trainer.n_gpus_per_node * trainer.nnodes is {ranks}. Choose "
            "sizes whose product divides it."
        )
    return ranks // shared


def check_shares(envs: Sequence[RunEnv], batch: int, most: int) -> None:
    """Check that every environment has as many tasks as a batch takes of it.

    Args:
        batch: `data.train_batch_size`.
        most: `data.train_max_samples`.
    """
    splits = split_tasks(envs)
    for run_env, split, share in zip(envs, splits, tasks_per_batch([each.weight for each in envs], batch), strict=True):
        tasks = len(split.train)
        if 0 < int(most) < min(tasks, share):
            raise ConfigError(
                f"data.train_max_samples={most} leaves fewer tasks of {run_env.label!r} than "
                f"the {share} that a batch takes (data.train_batch_size={batch}). Raise it, or set it to -1 for all."
            )
        if tasks < share:
            owner = "" if len(envs) == 1 else f" of {run_env.label!r}"
            needed = f"data.train_batch_size={batch}" if len(envs) == 1 else f"the {share} that a batch takes of it"
            env = run_env.env
            beside = f" beside those that env.dev_tasks={env.dev_tasks!r} holds out" if holds_out(env) else ""
            raise ConfigError(
                f"env.train_tasks={env.train_tasks!r}{owner} has {tasks} tasks{beside}, fewer than {needed}."
            )


def check_critic(critic: str, policy: str) -> None:
    """Check that the critic has an embedding for each token of the policy's tokenizer."""
    known = load_config(critic, "critic.model.path").get_text_config().vocab_size
    needed = len(load_tokenizer(policy, "actor_rollout_ref.model.path"))
    if known < needed:
        raise ConfigError(
            f"critic.model.path={critic!r} has {known} tokens, and the tokenizer of the policy {needed}: it cannot "
            "read all tokens. Choose a model with the policy's tokenizer, such as the policy's own."
        )
