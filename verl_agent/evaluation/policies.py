"""Policies of an evaluation: a model behind vLLM, the environment's oracle, random actions, or Python code."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError
from verl_agent.evaluation.settings import EvaluationConfig
from verl_agent.models.hf import load_config, load_tokenizer
from verl_agent.rollout.episode import Policy
from verl_agent.rollout.function_policy import PREFIX, load_policy
from verl_agent.rollout.oracle import ORACLE, OraclePolicy, demonstration_actions, oracle_policy
from verl_agent.types import DemoAction, TaskItem

RANDOM = "random"
"""Value of `model.path` with which an evaluation plays random actions."""
RANDOM_TASKS = 50
"""Number of tasks whose demonstrations provide the actions of the random policy."""

NewPolicy: TypeAlias = Callable[[TaskItem, int], Policy]
"""Factory of the policy of one attempt, from its task and its seed."""


def is_model(path: str) -> bool:
    """Return True if `model.path` names a model, not the oracle, the random policy or Python code."""
    return path not in (ORACLE, RANDOM) and not path.startswith(PREFIX)


def check_policy(path: str, env: EnvAdapter, items: Sequence[TaskItem]) -> None:
    """Check a `model.path` that names no model.

    Raises:
        ConfigError: the Python code does not load, or the environment has no demonstrations for random actions.
    """
    if path.startswith(PREFIX):
        load_policy(path)
    elif path == RANDOM:
        demonstrated_actions(env, items)


@contextmanager
def start_policies(model: str, config: EvaluationConfig, items: Sequence[TaskItem]) -> Iterator[NewPolicy]:
    """Yield the factory of policies; while the block runs, an engine serves the model if there is one.

    Args:
        model: folder or hub id of a model, `oracle`, `random`, or `python:MODULE:NAME`.
        config: sections of the evaluation.
        items: tasks of the evaluation.
    """
    settings = config.run
    env = make_env(settings.env.name, settings.env.options)
    new_agent = partial(make_agent, settings.agent, env.action_format)
    if model == ORACLE:
        yield lambda item, seed: oracle_policy(item, env, new_agent())
    elif model == RANDOM:
        actions = demonstrated_actions(env, items)
        yield lambda item, seed: random_policy(item, actions, new_agent(), seed)
    elif model.startswith(PREFIX):
        new_policy = load_policy(model)
        yield lambda item, seed: new_policy()
    else:
        from verl_agent.evaluation.vllm_engine import VllmEngine

        context = config.data.max_prompt_length + config.data.max_response_length
        with VllmEngine(model, config.engine, context) as engine:
            yield engine_policies(model, config, engine)


def demonstrated_actions(env: EnvAdapter, items: Sequence[TaskItem]) -> dict[str, list[str]]:
    """Return the actions that the oracle takes, by task id.

    Args:
        env: environment with its options.
        items: tasks of the evaluation; if there are fewer than `RANDOM_TASKS`, tasks of the first split are added.

    Raises:
        ConfigError: the environment has no demonstrations.
    """
    tasks = sample_tasks(items, RANDOM_TASKS)
    if len(tasks) < RANDOM_TASKS:
        known = {item.id for item in tasks}
        others = [item for item in env.tasks(env.splits[0]) if item.id not in known]
        tasks += sample_tasks(others, RANDOM_TASKS - len(tasks))
    try:
        return {item.id: [move.action for move in demonstration_actions(env, item)] for item in tasks}
    except ConfigError as error:
        raise ConfigError(
            f"model.path={RANDOM!r} draws from the actions of demonstrations, and {error} "
            "Use model.path=python:MODULE:NAME with a policy of your own."
        ) from error


def random_policy(item: TaskItem, actions: dict[str, list[str]], agent: Agent, seed: int) -> Policy:
    """Return a policy that draws uniformly from the distinct actions of other tasks' demonstrations.

    Args:
        item: task to play; its own demonstration is left out, if there are others.
        actions: actions by task id.
        agent: agent that renders the replies.
        seed: seed of the draws.
    """
    others = {action for task, taken in actions.items() if task != item.id for action in taken}
    vocabulary = sorted(others or set(actions[item.id]))
    draws = random.Random(seed)
    return OraclePolicy(agent, lambda observation: DemoAction(draws.choice(vocabulary)))


def engine_policies(model: str, config: EvaluationConfig, engine: Any) -> NewPolicy:
    """Return the factory of policies of a model: the token code of training with the sampling of the evaluation.

    Args:
        model: folder or hub id of the model.
        config: sections of the evaluation.
        engine: a `TokenEngine`.
    """
    from verl_agent.rollout.chat_template import check_tools, choose_builder
    from verl_agent.rollout.policy import EnginePolicy, TokenBudget
    from verl_agent.rollout.tokens import EpisodeTokens

    data, settings, evaluation = config.data, config.run, config.evaluation
    tokenizer = load_tokenizer(model, "model.path")
    builder = choose_builder(tokenizer, load_config(model, "model.path").model_type, data.apply_chat_template_kwargs)
    tools = make_agent(settings.agent, make_env(settings.env.name, settings.env.options).action_format).tools
    if tools:
        check_tools(tokenizer, builder, tools, data.apply_chat_template_kwargs)
    budget = TokenBudget(
        data.max_prompt_length,
        data.max_response_length,
        settings.episode.max_tokens_per_turn,
        settings.episode.on_truncated_turn == "play",
    )
    end_of_turn = tokenizer.eos_token_id

    def new_policy(item: TaskItem, seed: int) -> Policy:
        sampling = {"temperature": evaluation.temperature, "top_p": evaluation.top_p, "seed": seed}
        tokens = EpisodeTokens(builder, end_of_turn, tools)
        return EnginePolicy(engine, tokenizer, tokens, budget, sampling, frozenset({end_of_turn}))

    return new_policy
