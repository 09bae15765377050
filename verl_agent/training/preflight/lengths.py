"""Check that the batches of a training run divide, and that tasks, critic and sessions suffice."""

import math
from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_agent.config.algorithms import has_critic
from verl_agent.config.mixture import tasks_per_batch
from verl_agent.config.settings import RunEnv
from verl_agent.envs.hosts.slot import HOSTS
from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_config, load_tokenizer
from verl_agent.training.preflight.condition_table import PARTIAL, SEPARATE, SYNC
from verl_agent.training.splits import holds_out, split_tasks


def check_micro_batches(config: DictConfig) -> None:
    """Check that the rows of a step divide among the ranks and into micro batches, in passes not packed by tokens."""
    policy, episodes = config.actor_rollout_ref, int(config.actor_rollout_ref.rollout.n)
    ranks = {"actor_rollout_ref.actor": data_parallel(config, "actor_rollout_ref.actor")}
    if has_critic(config):
        ranks["critic"] = data_parallel(config, "critic")
    mini_batches = {
        f"{key}.ppo_mini_batch_size": int(OmegaConf.select(config, f"{key}.ppo_mini_batch_size")) for key in ranks
    }
    part, widest = math.gcd(*mini_batches.values()) * episodes, max(ranks.values())
    if part % math.lcm(*ranks.values()):
        given = ", ".join(f"{name}={size}" for name, size in mini_batches.items())
        raise ConfigError(
            f"{given} with actor_rollout_ref.rollout.n={episodes} makes parts of {part} episodes, which {widest} ranks "
            "cannot split evenly. Choose sizes whose greatest common divisor times rollout.n is a multiple of ranks."
        )
    rows = int(policy.actor.ppo_mini_batch_size) * episodes // ranks["actor_rollout_ref.actor"]  # verl fills up steps
    passes = [] if config.algorithm.rollout_correction.bypass_mode else ["rollout"]
    passes += ["ref"] if policy.actor.use_kl_loss or config.algorithm.use_kl_in_reward else []
    sizes = {
        f"actor_rollout_ref.{name}.log_prob_micro_batch_size_per_gpu": (
            policy[name].log_prob_micro_batch_size_per_gpu,
            policy[name].log_prob_use_dynamic_bsz,
        )
        for name in passes
    }
    key = "ppo_micro_batch_size_per_gpu"
    sizes[f"actor_rollout_ref.actor.{key}"] = (policy.actor[key], policy.actor.use_dynamic_bsz)
    checks = [(name, size, rows) for name, (size, packed) in sizes.items() if not packed]
    critic = config.critic
    if has_critic(config) and not critic.use_dynamic_bsz:
        rows = int(critic.ppo_mini_batch_size) * episodes // ranks["critic"]
        checks.append((f"critic.{key}", critic[key], rows))
    for name, size, rows in checks:
        if size and rows % int(size):
            raise ConfigError(
                f"{name}={size} does not divide the {rows} episodes of a mini-batch on each GPU "
                "(ppo_mini_batch_size * rollout.n). Choose a divisor."
            )


def data_parallel(config: DictConfig, key: str) -> int:
    """Return the number of ranks that split the rows of a batch; the others share the work on the same rows."""
    model, gpus = OmegaConf.select(config, key), int(config.trainer.n_gpus_per_node * config.trainer.nnodes)
    names: tuple[str, ...]
    if model.strategy == "megatron":
        section_key = f"{key}.megatron"
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    else:
        section_key = f"{key}.fsdp_config" if key == "actor_rollout_ref.actor" else f"{key}.fsdp"
        names = ("ulysses_sequence_parallel_size",)
    sizes = {name: int(OmegaConf.select(config, f"{section_key}.{name}")) for name in names}
    shared = math.prod(sizes.values())
    if gpus % shared:
        given = ", ".join(f"{section_key}.{name}={size}" for name, size in sizes.items() if size > 1)
        raise ConfigError(
            f"{given} needs groups of {shared} GPUs, and trainer.n_gpus_per_node * trainer.nnodes is {gpus}. Choose "
            "sizes whose product divides it."
        )
    return gpus // shared


def check_shares(config: DictConfig, envs: Sequence[RunEnv]) -> None:
    """Check that every environment has as many tasks as a batch takes of it."""
    batch = int(config.data.train_batch_size)
    splits = split_tasks(envs)
    for run_env, split, share in zip(envs, splits, tasks_per_batch([each.weight for each in envs], batch), strict=True):
        tasks = len(split.train)
        if 0 < int(config.data.train_max_samples) < min(tasks, share):
            raise ConfigError(
                f"data.train_max_samples={config.data.train_max_samples} leaves fewer tasks of {run_env.label!r} than "
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


SECTIONS = {PARTIAL: "colocate_async", SEPARATE: "separate_async"}
"""Section of `trainer.v1` that verl reads for each asynchronous mode."""


def check_places(config: Mapping[str, Any], run_env: RunEnv, envs: Sequence[RunEnv]) -> None:
    """Check that the hosts have a session for each episode in flight, in an asynchronous run.

    An episode that waits for a session during an update gets none, because those in flight wait for the engine. With
    hosts in Ray actors and without `env.hosts.count`, the number of hosts is known to the cluster only. Otherwise each
    agent-loop worker has hosts of its own, and gets whole groups in turn (`verl_agent.training.dispatch`). After some
    steps a worker may have more groups in flight than another, and then its episodes wait for each other.
    """
    hosts, rollout, v1 = run_env.env.hosts, config["actor_rollout_ref"]["rollout"], config["trainer"]["v1"]
    if v1["trainer_mode"] == SYNC:
        return
    machines = config["trainer"]["nnodes"] + (rollout["nnodes"] if v1["trainer_mode"] == SEPARATE else 0)
    in_ray = hosts.where == "ray" or (hosts.where == "auto" and machines > 1)
    if in_ray and hosts.count is None:
        return
    batch, section = int(config["data"]["train_batch_size"]), SECTIONS[v1["trainer_mode"]]
    groups = batch + floor(batch * v1[section]["num_warmup_batches"])
    recent = batch * (v1["sampler"]["max_off_policy_threshold"] + 1)
    share = run_env.weight / sum(other.weight for other in envs)
    workers = 1 if in_ray else int(rollout["agent"]["num_workers"])
    episodes = min(ceil(groups / workers), ceil(recent * share)) * int(rollout["n"])
    sessions = run_env.live.hosting.bounded(hosts.sessions).sessions
    places = (hosts.count or HOSTS) * sessions
    if places < episodes:
        each = "" if in_ray else f" in each of actor_rollout_ref.rollout.agent.num_workers={workers}"
        raise ConfigError(
            f"env.hosts.count={hosts.count!r} and env.hosts.sessions={hosts.sessions!r} give {run_env.label!r} places "
            f"for {places} episodes{each}, but up to {episodes} are in flight (groups of "
            f"actor_rollout_ref.rollout.n={rollout['n']}, data.train_batch_size={batch} and num_warmup_batches of "
            f"trainer.v1.{section}). Set env.hosts.count={ceil(episodes / sessions)} or more, or lower the others."
        )
