"""Check that the environments of an asynchronous run have a place for each episode in flight."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any

from verl_agent.config.settings import RunEnv
from verl_agent.envs.hosts.slot import HOSTS
from verl_agent.errors import ConfigError
from verl_agent.training.preflight.condition_table import PARTIAL, SEPARATE, SYNC

SECTIONS = {PARTIAL: "colocate_async", SEPARATE: "separate_async"}
"""Section of `trainer.v1` that verl reads for each asynchronous mode."""


def check_places(config: Mapping[str, Any], run_env: RunEnv, envs: Sequence[RunEnv]) -> None:
    """Check that the hosts have a session for each episode in flight, in an asynchronous run.

    An episode that waits for a session during an update gets none, because those in flight wait for the engine. With
    hosts in Ray actors and without `env.hosts.count`, the number of hosts is known to the cluster only. Otherwise each
    agent-loop worker has hosts of its own, and gets whole groups in turn (`verl_agent.training.dispatch`). After some
    steps a worker may have more groups in flight than another, and then its episodes wait for each other.

    Args:
        config: whole config in plain values, resolved.
        run_env: environment to check.
        envs: all environments of the run.

    Raises:
        ConfigError: there are fewer sessions.
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
