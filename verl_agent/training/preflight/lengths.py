"""Check that token budgets, batches and contexts of a training run fit together."""

import math
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from verl_agent.config.algorithms import TURN_ESTIMATORS
from verl_agent.config.mixture import tasks_per_batch
from verl_agent.config.settings import RunEnv
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_config, load_tokenizer
from verl_agent.rollout.settings import PromptSettings
from verl_agent.sections import section
from verl_agent.training.preflight.algorithms import has_critic
from verl_agent.training.splits import holds_out, split_tasks


def check_lengths_fit_model(config: DictConfig, run_env: RunEnv) -> None:
    """Check the estimator and the loss of a context that removes turns: an episode then makes several training rows.

    Raises:
        ConfigError: the estimator or the average of the loss would weight an episode by its number of rows.
    """
    if not run_env.new_agent().context.edits:
        return
    keep = run_env.agent.context["keep"]
    for key, allowed, why in (
        ("algorithm.adv_estimator", ("grpo", *TURN_ESTIMATORS), "treats the rows of an episode as episodes"),
        ("actor_rollout_ref.actor.loss_agg_mode", ("token-mean",), "weights an episode by its rows"),
        ("algorithm.use_kl_in_reward", (False,), "counts only the penalty of the last row"),
    ):
        if OmegaConf.select(config, key) not in allowed:
            raise ConfigError(
                f"agent.context.keep={keep!r} splits an episode into several rows, and {key}="
                f"{OmegaConf.select(config, key)!r} {why}. Allowed with it: {', '.join(map(str, allowed))}."
            )


def check_budgets(config: DictConfig, run_env: RunEnv) -> None:
    """Check that token budgets fit together and into the engine's context, and that batches divide.

    Raises:
        ConfigError: a budget is too large, a batch size is not a multiple, or `data.overlong_prompt` is unknown.
    """
    prompt, response = int(config.data.max_prompt_length), int(config.data.max_response_length)
    section("data", PromptSettings, {"overlong_prompt": config.data.overlong_prompt})
    context, episode = config.actor_rollout_ref.rollout.max_model_len, run_env.episode
    turn = episode.max_tokens_per_turn
    if context is not None and prompt + response > int(context):
        raise ConfigError(
            f"data.max_prompt_length={prompt} and data.max_response_length={response} exceed "
            f"actor_rollout_ref.rollout.max_model_len={context} tokens. Lower them, or raise it."
        )
    if turn > response:
        raise ConfigError(
            f"episode.max_tokens_per_turn={turn} exceeds data.max_response_length={response}, the tokens of the whole "
            "episode after its prompt."
        )
    if episode.max_tokens is not None and episode.max_tokens > response:
        raise ConfigError(
            f"episode.max_tokens={episode.max_tokens} of {run_env.label!r} exceeds data.max_response_length="
            f"{response}, the maximum of every episode."
        )
    check_micro_batches(config)
    batch, mini = int(config.data.train_batch_size), int(config.actor_rollout_ref.actor.ppo_mini_batch_size)
    one_update = run_env.new_agent().context.edits and mini % batch == 0  # one update for all rows of a step
    if batch % mini and not one_update:
        raise ConfigError(
            f"data.train_batch_size={batch} must be a multiple of actor_rollout_ref.actor.ppo_mini_batch_size={mini}."
        )


def check_micro_batches(config: DictConfig) -> None:
    """Check that the rows of a step divide among the ranks and into micro batches, in passes not packed by tokens.

    Raises:
        ConfigError: the rows do not divide, so that the run would stop at the first step.
    """
    policy, episodes = config.actor_rollout_ref, int(config.actor_rollout_ref.rollout.n)
    ranks = {"actor_rollout_ref.actor": data_parallel(config, "actor_rollout_ref.actor")}
    check_engine_size(config)
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
    """Return the number of ranks that split the rows of a batch; the others share the work on the same rows.

    Args:
        config: resolved config.
        key: section of the trained model, `actor_rollout_ref.actor` or `critic`.

    Raises:
        ConfigError: the GPUs do not divide into groups of the parallel sizes.
    """
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


def check_engine_size(config: DictConfig) -> None:
    """Check that the GPUs divide into rollout engines.

    Raises:
        ConfigError: they do not.
    """
    size, gpus = (
        int(config.actor_rollout_ref.rollout.tensor_model_parallel_size),
        int(config.trainer.n_gpus_per_node * config.trainer.nnodes),
    )
    if gpus % size:
        raise ConfigError(
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={size} does not divide the {gpus} GPUs of the run. "
            "Choose a divisor."
        )


def check_shares(config: DictConfig, envs: Sequence[RunEnv]) -> None:
    """Check that every environment has as many tasks as a batch takes of it.

    Raises:
        ConfigError: an environment has fewer tasks.
    """
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
            raise ConfigError(
                f"env.train_tasks={run_env.env.train_tasks!r}{owner} has {tasks} tasks{_beside_dev(run_env.env)}, "
                f"fewer than {needed}."
            )


def _beside_dev(env: EnvSettings) -> str:
    return f" beside those that env.dev_tasks={env.dev_tasks!r} holds out" if holds_out(env) else ""


def check_critic(critic: str, policy: str) -> None:
    """Check that the critic has an embedding for each token of the policy's tokenizer.

    Args:
        critic: folder or hub id of the critic's model.
        policy: that of the policy.

    Raises:
        ConfigError: its vocabulary is smaller, or its config cannot be read.
    """
    known = load_config(critic, "critic.model.path").get_text_config().vocab_size
    needed = len(load_tokenizer(policy, "actor_rollout_ref.model.path"))
    if known < needed:
        raise ConfigError(
            f"critic.model.path={critic!r} has {known} tokens, and the tokenizer of the policy {needed}: it cannot "
            "read all tokens. Choose a model with the policy's tokenizer, such as the policy's own."
        )
