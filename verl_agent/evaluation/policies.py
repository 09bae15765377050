"""Policies and sessions of an evaluation. A policy is a model, the oracle, random actions, or Python code."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from verl_agent.actions import Action
from verl_agent.agents.base import Agent
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.model_api.client import ApiClient
from verl_agent.envs.model_api.reply_log import FILE, ReplyLog
from verl_agent.envs.model_api.settings import ApiSettings
from verl_agent.envs.model_api.traffic import Traffic
from verl_agent.envs.session import PooledEnv, Session
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError
from verl_agent.evaluation.api_policy import ApiPolicy
from verl_agent.evaluation.perturb import PerturbedSession
from verl_agent.evaluation.settings import EvaluationConfig
from verl_agent.models.hf import load_config, load_tokenizer
from verl_agent.rollout.function_policy import PREFIX, load_policy
from verl_agent.rollout.oracle import ORACLE, OraclePolicy, demonstration_actions, oracle_policy
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.prompts import FittedSession, token_counter
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.types import DemoAction, TaskItem

RANDOM = "random"
"""Value of `model.path` with which an evaluation plays random actions."""
RANDOM_TASKS = 50
"""Most tasks whose demonstrations provide the actions of the random policy."""

NewPolicy: TypeAlias = Callable[[TaskItem, EpisodeSeed], Policy]
"""Factory of the policy of one attempt, from its task and its seed."""
Demonstrated: TypeAlias = Sequence[tuple[TaskItem, Sequence[Action]]]
"""Tasks with the actions of their demonstrations."""


def is_model(path: str) -> bool:
    """Return True if `model.path` names a model, not the oracle, the random policy or Python code."""
    return path not in (ORACLE, RANDOM) and not path.startswith(PREFIX)


def check_policy(path: str, env: EnvAdapter, items: Sequence[TaskItem]) -> None:
    """Check a `model.path` that names no model.

    Raises:
        ConfigError: the Python code does not load, its class cannot be constructed, or the environment has no
            demonstrations for random actions.
    """
    if path.startswith(PREFIX):
        load_policy(path)()
    elif path == RANDOM:
        demonstrated_actions(env, items)


@asynccontextmanager
async def start_policies(
    model: str,
    config: EvaluationConfig,
    items: Sequence[TaskItem],
    folder: Path,
    kind: Any = None,
    traffic: Traffic | None = None,
) -> AsyncIterator[NewPolicy]:
    """Yield the factory of policies; an engine or a connection serves the model while the block runs.

    Args:
        kind: class of the policies of a model that this machine serves; None for `EnginePolicy`.
        traffic: counts the requests to a model behind an API; None to count none.
    """
    run = config.run
    if config.api is not None:
        log = ReplyLog(folder / FILE)
        try:
            async with ApiClient(config.api, log, config.evaluation.max_usd, traffic=traffic, chosen=True) as client:
                yield api_policies(config.api, config, client)
        finally:
            log.close()
    elif model == ORACLE:
        yield lambda item, seed: oracle_policy(item, run.live, run.new_agent())
    elif model == RANDOM:
        demonstrated = demonstrated_actions(run.live, items)
        yield lambda item, seed: random_policy(item, demonstrated, run.new_agent(), seed.at(0))
    elif model.startswith(PREFIX):
        new_policy = load_policy(model)
        yield lambda item, seed: new_policy()
    else:
        with start_engine(model, config) as engine:
            yield engine_policies(model, config, engine, kind)


def start_engine(model: str, config: EvaluationConfig) -> AbstractContextManager[Any]:
    """Return the running engine of a model, a `TokenEngine`, whose context has the length of an episode.

    Raises:
        ConfigError: the engine is not installed, or the machine has too few GPUs.
    """
    context = config.data.max_prompt_length + config.data.max_response_length
    if config.engine.name == "sglang":
        from verl_agent.evaluation.sglang_engine import SglangEngine

        return SglangEngine(model, config.engine, context)
    from verl_agent.evaluation.vllm_engine import VllmEngine

    return VllmEngine(model, config.engine, context)


@asynccontextmanager
async def start_sessions(
    model: str | None, config: EvaluationConfig, hosts: int | None = None
) -> AsyncIterator[Callable[[], Session]]:
    """Yield the factory of sessions, with the perturbations of the evaluation; their hosts end with the block.

    Args:
        model: model whose prompts are cut to their limit if the evaluation says so; None for a person.
    """
    live, data, evaluation = config.run.live, config.data, config.evaluation
    pool, count = local_pool(live, config.run.env, hosts), None
    if model is not None and is_model(model) and config.api is None and data.overlong_prompt != "drop":
        count = token_counter(token_builder(model, config), config.run.new_agent)

    def new_session() -> Session:
        session: Session = PooledEnv(live, pool)
        if evaluation.perturb.active:
            session = PerturbedSession(session, evaluation.perturb, evaluation.seed)
        return session if count is None else FittedSession(session, count, data.max_prompt_length)

    try:
        yield new_session
    finally:
        await pool.shutdown()


def role_warning(model: str, config: EvaluationConfig) -> str:
    """Return a warning about the chat template of a model that an engine plays; see `describe_role_marks`."""
    if config.api is not None or not is_model(model):
        return ""
    from verl_agent.rollout.chat_template import describe_role_marks

    return describe_role_marks(load_tokenizer(model, "model.path"), config.data.apply_chat_template_kwargs)


def token_builder(model: str, config: EvaluationConfig) -> Any:
    """Return the continuous-token builder of a model."""
    from verl_agent.rollout.chat_template import choose_builder

    model_type = load_config(model, "model.path").model_type
    return choose_builder(load_tokenizer(model, "model.path"), model_type, config.data.apply_chat_template_kwargs)


def demonstrated_actions(env: EnvAdapter, items: Sequence[TaskItem]) -> Demonstrated:
    """Return up to `RANDOM_TASKS` tasks with the actions of their demonstrations.

    Args:
        items: tasks of the evaluation. If there are too few, tasks of the first split are added, those of the same
            categories first.

    Raises:
        ConfigError: the environment has no demonstrations.
    """
    tasks = sample_tasks(items, RANDOM_TASKS)
    if len(tasks) < RANDOM_TASKS:
        known, categories = {item.id for item in tasks}, {item.category for item in tasks}
        others = [item for item in env.tasks(env.splits[0]) if item.id not in known]
        similar = [item for item in others if item.category in categories]
        different = [item for item in others if item.category not in categories]
        tasks += [*sample_tasks(similar, len(similar)), *sample_tasks(different, len(different))]
    try:
        return [(item, [demo.action for demo in demonstration_actions(env, item)]) for item in tasks[:RANDOM_TASKS]]
    except ConfigError as error:
        raise ConfigError(
            f"model.path={RANDOM!r} draws from the actions of demonstrations, and {error} "
            "Use model.path=python:MODULE:NAME with a policy of your own."
        ) from error


def random_policy(item: TaskItem, demonstrated: Demonstrated, agent: Agent, seed: int) -> Policy:
    """Return a policy that draws uniformly from the distinct actions of other tasks' demonstrations."""
    vocabulary, draws = other_actions(item, demonstrated), random.Random(seed)
    return OraclePolicy(agent, lambda observation: DemoAction(draws.choice(vocabulary)))


def other_actions(item: TaskItem, demonstrated: Demonstrated) -> list[Action]:
    """Return the distinct actions of demonstrations, without those of `item` and, if any remain, other categories."""
    others = [(task, actions) for task, actions in demonstrated if task.id != item.id] or demonstrated
    similar = [(task, actions) for task, actions in others if task.category == item.category] or others
    return sorted(dict.fromkeys(action for _, actions in similar for action in actions), key=str)


def api_policies(api: ApiSettings, config: EvaluationConfig, client: ApiClient) -> NewPolicy:
    """Return the factory of policies of a model behind an API."""
    run, evaluation = config.run, config.evaluation
    agent = run.new_agent()
    budget = episode_budget(config, api.max_output_tokens or run.episode.max_tokens_per_turn)
    sampling = {"temperature": evaluation.temperature, "top_p": evaluation.top_p}
    seeded = run.episode.seeded_sampling
    return lambda item, seed: ApiPolicy(
        client, budget, sampling, seed, seeded, agent.tools, api.options, agent.parallel
    )


def episode_budget(config: EvaluationConfig, turn: int) -> TokenBudget:
    """Return the token limits of an episode."""
    data, truncated = config.data, config.run.episode.on_truncated_turn
    return TokenBudget(data.max_prompt_length, data.max_response_length, turn, truncated == "play")


def engine_policies(model: str, config: EvaluationConfig, engine: Any, kind: Any = None) -> NewPolicy:
    """Return the factory of policies of a model: the token code of training with the sampling of the evaluation.

    kind: see `start_policies`.
    """
    from verl_agent.rollout.chat_template import check_tools
    from verl_agent.rollout.engine_policy import EnginePolicy
    from verl_agent.rollout.tokens import EpisodeTokens

    data, run, evaluation, policy_class = config.data, config.run, config.evaluation, kind or EnginePolicy
    tokenizer = load_tokenizer(model, "model.path")
    builder = token_builder(model, config)
    agent = run.new_agent()
    check_tools(tokenizer, builder, agent, data.apply_chat_template_kwargs)
    budget = episode_budget(config, run.episode.max_tokens_per_turn)
    end_of_turn = tokenizer.eos_token_id

    def new_policy(item: TaskItem, seed: EpisodeSeed) -> Policy:
        sampling: dict[str, Any] = {"temperature": evaluation.temperature, "top_p": evaluation.top_p}
        if evaluation.logprobs is not None:
            sampling["logprobs"] = evaluation.logprobs
        tokens = EpisodeTokens(builder, end_of_turn, agent.tools, agent.marks)
        own_seed = seed if run.episode.seeded_sampling else None
        made: Policy = policy_class(engine, tokenizer, tokens, budget, sampling, frozenset({end_of_turn}), own_seed)
        return made

    return new_policy
