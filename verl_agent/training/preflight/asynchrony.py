"""Check that the settings of asynchronous rollout take effect, and that a run can serve them."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any

from verl_agent.config.keys import leaves, reference
from verl_agent.config.settings import RunEnv
from verl_agent.envs.hosts.slot import HOSTS
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.training.preflight.update import CORRECTION, WEIGHTS

SYNC, SEPARATE = "verl_agent", "verl_agent_separate"
MODES = {SYNC: "sync", "verl_agent_partial": "colocate_async", SEPARATE: "separate_async"}
"""Values of `trainer.v1.trainer_mode`, and the section of `trainer.v1` that verl reads for each."""
SAMPLER_OF = dict.fromkeys(MODES, ("partial_sampler", "PartialEpisodeSampler"))
SAMPLER_OF[SYNC] = ("sampler", "EpisodeSampler")
"""Module in `verl_agent.training` and class of the sampler, by mode."""
MODE, SAMPLER, ROLLOUT = "trainer.v1.trainer_mode", "trainer.v1.sampler", "actor_rollout_ref.rollout"


def check_asynchrony(config: Mapping[str, Any], envs: Sequence[RunEnv]) -> None:
    """Check the mode of the trainer and the settings that belong to it.

    Args:
        config: whole config in plain values, resolved.
        envs: environments of the run.

    Raises:
        ConfigError: a setting has no effect in the mode, or the mode cannot work with it.
    """
    v1 = config["trainer"]["v1"]
    mode = v1["trainer_mode"]
    if mode not in MODES:
        raise ConfigError(f"{MODE}={mode!r} does not suit episodes. {did_you_mean(str(mode), MODES)}")
    module, name = SAMPLER_OF[mode]
    for key, allowed in (("name", name), ("path", f"pkg://verl_agent.training.{module}")):
        given = v1["sampler"]["custom_sampler"][key]
        if given != allowed:
            raise ConfigError(
                f"{SAMPLER}.custom_sampler.{key}={given!r} does not suit {MODE}={mode!r}. Allowed: {allowed!r}."
            )
    _check_unread(v1, mode)
    _check_overridden(config, mode)
    if mode == SYNC:
        return
    _check_correction(config["algorithm"]["rollout_correction"], mode)
    _check_staleness(config, mode)
    _check_groups(config, mode)
    if mode == SEPARATE:
        _check_devices(config)
    for run_env in envs:
        if run_env.horizon.adaptive:
            raise ConfigError(
                f"horizon.adaptive of {run_env.label!r} does not work with {MODE}={mode!r}: it would start a stage by "
                "the results of episodes that still have the limit of an earlier one. Set horizon.steps_per_stage, or "
                "leave out +overlay/rollout=partial."
            )
        _check_places(config, run_env, envs)


def _check_unread(v1: Mapping[str, Any], mode: str) -> None:
    """Check that no setting of another mode is changed."""
    defaults = dict(leaves(reference("agent_base")["trainer"]["v1"]))
    read = {MODES[mode], *(("sampler",) if mode != SYNC else ())}
    for section in ("colocate_async", "separate_async", "sampler"):
        for key, value in leaves(v1[section], section) if section not in read else ():
            own = key.startswith(("sampler.custom_sampler", "sampler.sampler_kwargs", "sampler.sync_refill"))
            if not own and value != defaults[key]:
                overlay = "separate" if section == "separate_async" else "partial"
                choose = f"Add +overlay/rollout={overlay} to choose asynchronous rollout."
                remedy = choose if mode == SYNC else f"Leave it at {defaults[key]!r}."
                raise ConfigError(f"trainer.v1.{key}={value!r} has no effect with {MODE}={mode!r}. {remedy}")


def _check_overridden(config: Mapping[str, Any], mode: str) -> None:
    """Check that no setting is changed for which verl takes its own value in this mode."""
    if not config["actor_rollout_ref"]["hybrid_engine"]:
        raise ConfigError(
            f"actor_rollout_ref.hybrid_engine=False does not work with {MODE}={mode!r}: verl's separate_async fails at "
            "its start (trainer_separate_async.py:181), and the other modes ignore it. Leave it at true."
        )
    rollout, fetched = config["actor_rollout_ref"]["rollout"], config["data"]["gen_batch_size"]
    if mode != SYNC and fetched not in (None, 1):
        raise ConfigError(f"data.gen_batch_size={fetched!r} has no effect with {MODE}={mode!r}. Leave it at null.")
    if mode == SEPARATE:
        return
    backend = rollout["checkpoint_engine"]["backend"]
    for key, value, default in (("nnodes", rollout["nnodes"], 0), ("checkpoint_engine.backend", backend, "naive")):
        if value != default:
            raise ConfigError(
                f"{ROLLOUT}.{key}={value!r} has no effect with {MODE}={mode!r}: engine and trainer share the devices. "
                f"Leave it at {default!r}, or add +overlay/rollout=separate."
            )


def _check_correction(correction: Mapping[str, Any], mode: str) -> None:
    if correction["rollout_is"] not in WEIGHTS:
        raise ConfigError(
            f"{CORRECTION}.rollout_is={correction['rollout_is']!r} leaves {MODE}={mode!r} uncorrected: tokens of an "
            "episode were sampled by several versions of the weights, and their loss must be weighted by the ratio of "
            f"probabilities. Allowed: {' or '.join(WEIGHTS)}. Add +overlay/correction=token_is after the other "
            "overlays, or leave out +overlay/rollout=partial."
        )


def _check_staleness(config: Mapping[str, Any], mode: str) -> None:
    """Check the bound of staleness, and that a step has room for all groups that reach it."""
    v1, batch = config["trainer"]["v1"], int(config["data"]["train_batch_size"])
    key, threshold = f"{SAMPLER}.max_off_policy_threshold", v1["sampler"]["max_off_policy_threshold"]
    if not isinstance(threshold, int) or isinstance(threshold, bool) or threshold < 2:
        raise ConfigError(
            f"{key}={threshold!r} is not allowed with {MODE}={mode!r}. An episode is trained on at most this value - 1 "
            "updates after its dispatch, so 1 would be synchronous and null unbounded. Allowed: a whole number >= 2, "
            "such as 3."
        )
    strategy = v1["sampler"]["max_off_policy_strategy"]
    if strategy != "wait":
        raise ConfigError(
            f"{SAMPLER}.max_off_policy_strategy={strategy!r} is not allowed: it throws finished groups away, most of "
            "them of tasks that take long, and training prefers easy tasks. Set it to wait."
        )
    section = MODES[mode]
    key, warmup = f"trainer.v1.{section}.num_warmup_batches", v1[section]["num_warmup_batches"]
    if isinstance(warmup, bool) or not isinstance(warmup, int | float) or not 0 < warmup <= 1:
        raise ConfigError(
            f"{key}={warmup!r} is not allowed. Allowed: above 0, since nothing else is in flight during an update, and "
            "at most 1, since more groups could become too old for one step to train on. Set it to 0.5."
        )
    if warmup * batch < 1:
        raise ConfigError(
            f"{key}={warmup!r} of data.train_batch_size={batch} is less than one group, so no episode would be in "
            f"flight during an update. Set it to {ceil(100 / batch) / 100:g} or more."
        )


def _check_groups(config: Mapping[str, Any], mode: str) -> None:
    filtering = config["algorithm"]["filter_groups"]
    if filtering["enable"] and filtering["max_inflight_gen_batches"] != 1:
        raise ConfigError(
            f"algorithm.filter_groups.max_inflight_gen_batches={filtering['max_inflight_gen_batches']!r} has no effect "
            f"with {MODE}={mode!r}: each filtered group is replaced by one other. Leave it at 1."
        )


def _check_places(config: Mapping[str, Any], run_env: RunEnv, envs: Sequence[RunEnv]) -> None:
    """Check that the hosts have a session for each episode in flight.

    An episode that waits for a session during an update gets none, because those in flight wait for the engine. With
    hosts in Ray actors and without `env.hosts.count`, the number of hosts is known to the cluster only. Otherwise each
    agent-loop worker has hosts of its own, and gets whole groups in turn (`verl_agent.training.dispatch`). After some
    steps a worker may have more groups in flight than another, and then its episodes wait for each other.
    """
    hosts, rollout, v1 = run_env.env.hosts, config["actor_rollout_ref"]["rollout"], config["trainer"]["v1"]
    machines = config["trainer"]["nnodes"] + (rollout["nnodes"] if v1["trainer_mode"] == SEPARATE else 0)
    in_ray = hosts.where == "ray" or (hosts.where == "auto" and machines > 1)
    if in_ray and hosts.count is None:
        return
    batch, section = int(config["data"]["train_batch_size"]), MODES[v1["trainer_mode"]]
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


def _check_devices(config: Mapping[str, Any]) -> None:
    """Check what verl asserts for engines on devices of their own (trainer_separate_async.py, `__init__`)."""
    rollout, steps = config["actor_rollout_ref"]["rollout"], config["trainer"]["v1"]["separate_async"]
    if config["trainer"]["device"] == "cpu":
        raise ConfigError(
            f"{MODE}='verl_agent_separate' does not work with trainer.device='cpu': the engines receive weights over "
            "NCCL, and a machine has one CPU. Add +overlay/rollout=partial instead of separate."
        )
    for key in ("nnodes", "n_gpus_per_node"):
        if not isinstance(rollout[key], int) or rollout[key] < 1:
            raise ConfigError(
                f"{ROLLOUT}.{key}={rollout[key]!r} gives the engines no devices of their own. Allowed: "
                "a whole number >= 1."
            )
    if rollout["checkpoint_engine"]["backend"] == "naive":
        raise ConfigError(
            f"{ROLLOUT}.checkpoint_engine.backend='naive' sends weights within a device only. Set it to nccl."
        )
    section = "trainer.v1.separate_async"
    if steps["hybrid_rollout"]["enable_switch"]:
        raise ConfigError(
            f"{section}.hybrid_rollout.enable_switch=True is not supported: the sampler would count the groups that "
            "algorithm.filter_groups replaces more than once. Leave it at false."
        )
    if steps["parameter_sync_step"] != 1:
        raise ConfigError(
            f"{section}.parameter_sync_step={steps['parameter_sync_step']!r} is not supported: metrics, token data and "
            "the bound of staleness count one transfer of the weights in each step. Leave it at 1."
        )
    batch, mini = config["data"]["train_batch_size"], config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    if batch != mini:
        raise ConfigError(
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini} must be data.train_batch_size={batch} with "
            f"{MODE}='verl_agent_separate': a step makes one update. Set it to {batch}."
        )
