"""Begin tasks as episodes begin, and see whether the model can be asked so: before anything else starts."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

from omegaconf import DictConfig, OmegaConf

from verl_agent.agents.base import Agent
from verl_agent.agents.registry import make_agent
from verl_agent.config.settings import RunSettings
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.registry import make_env
from verl_agent.envs.settings import EnvSettings
from verl_agent.envs.tasks import sample_tasks, select_tasks
from verl_agent.errors import ConfigError, EnvError
from verl_agent.models.hf import check_context, load_config, load_tokenizer, positions
from verl_agent.types import Message, TaskItem

PROMPTS_CHECKED = 64
"""Tasks that begin side by side; the first so many are always looked at."""
PROMPTS_S = 5.0
"""Seconds in which further prompts are looked at: all of them where an environment begins quickly."""


def agent_for_checks(settings: RunSettings) -> Agent:
    """An agent as episodes have it.

    Raises:
        ConfigError: there is no such one, or it refuses its options or its context.
    """
    env = make_env(settings.env.name, settings.env.options)
    return make_agent(settings.agent, env.action_format)


def check_prompts(config: DictConfig, settings: RunSettings) -> None:
    """The model can be asked as the environment asks: it reads so much, knows chat templates, prompts fit the budget.

    Looks at all tasks, or at as many as begin in `PROMPTS_S`; a longer prompt of another task stops the run when
    it is met.

    Raises:
        ConfigError: the model cannot be fetched or reads too little, no token builder agrees with its template, or a
            prompt is too long.
    """
    from verl_agent.rollout.chat_template import check_tools, choose_builder

    model, budget = config.actor_rollout_ref.model, int(config.data.max_prompt_length)
    key, other = "actor_rollout_ref.model.path", model.tokenizer_path
    read = load_config(model.path, key)
    check_context(positions(read), budget, int(config.data.max_response_length), f"{key}={model.path!r}")
    tokenizer = load_tokenizer(other or model.path, "actor_rollout_ref.model.tokenizer_path" if other else key)
    template_options = OmegaConf.to_container(config.data.apply_chat_template_kwargs)
    builder = choose_builder(tokenizer, read.model_type, template_options)
    agent = agent_for_checks(settings)
    if agent.tools:
        check_tools(tokenizer, builder, agent.tools, template_options)
    selections = (settings.env.train_tasks, settings.env.eval_tasks)
    listed = [select_tasks(settings.env.name, tasks, settings.env.options) for tasks in selections]
    pairs = zip_longest(*(sample_tasks(tasks, len(tasks)) for tasks in listed))
    items = [item for pair in pairs for item in pair if item is not None]
    for item, prompt in zip(items, asyncio.run(first_messages(settings.env, items)), strict=False):
        length = len(builder.build_initial_tokens(agent.build_prompt(prompt), tools=agent.tools))
        if length > budget:
            raise ConfigError(
                f"the prompt of task {item.id!r} has {length} tokens, more than data.max_prompt_length={budget}. "
                "Raise it, or choose a shorter prompt in env.options and agent.options."
            )


def batched(items: Sequence[TaskItem], size: int) -> Iterator[list[TaskItem]]:
    """The items in lists of `size`; the last one may be shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


async def first_messages(env: EnvSettings, items: Sequence[TaskItem]) -> list[list[Message]]:
    """The prompts of the tasks, of as many as begin in time, from a host that ends with all that it started.

    Raises:
        ConfigError: the environment does not start.
    """
    pool = local_pool(make_env(env.name, env.options), env, count=1)

    async def begin(item: TaskItem) -> list[Message]:
        try:
            session = await pool.open()
            try:
                return await pool.reset(session, item)
            finally:
                await pool.close(session)
        except EnvError as error:
            raise ConfigError(f"env {env.name!r} does not begin task {item.id!r}: {error}") from error

    prompts: list[list[Message]] = []
    until = time.monotonic() + PROMPTS_S
    try:
        for chunk in batched(items, PROMPTS_CHECKED):
            prompts += await asyncio.gather(*map(begin, chunk))
            if time.monotonic() > until:
                break
        return prompts
    finally:
        await pool.shutdown()
