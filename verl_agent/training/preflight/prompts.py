"""Check of prompts: tasks begin as episodes do, and their prompts must fit the model and its chat template."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import quantiles
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.config.plan import RunPlan
from verl_agent.config.settings import AgentEnv, RunEnv
from verl_agent.envs.arena import Arena, as_match, first_texts
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.session import SessionPool
from verl_agent.envs.settings import AUTO, EnvSettings
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError, EnvError
from verl_agent.models.hf import check_context, check_template_options, load_config, load_tokenizer, positions
from verl_agent.models.portable import check_portable
from verl_agent.models.resolve import resolve_model
from verl_agent.rollout.limits import check_turns, template_tokens
from verl_agent.rollout.prompts import CountTokens, cut_observation, token_counter
from verl_agent.types import Message, TaskItem

SIDE_BY_SIDE = 64
"""Number of tasks that begin side by side; the first group always begins."""


@dataclass(slots=True)
class FirstMessages:
    """First messages of tasks, and tasks that failed to begin.

    Attributes:
        prompts: first messages of each task that began, by task id.
        errors: last environment error of each task that failed at every attempt, by task id.
    """

    prompts: dict[str, list[Message]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> str:
        """Number of tasks that failed to begin, with the error of the first one; empty without any."""
        if not self.errors:
            return ""
        task, error = next(iter(self.errors.items()))
        return f"{len(self.errors)} failed to begin (task {task!r}: {error})"


async def first_messages(played: AgentEnv, items: Sequence[TaskItem], limit_s: float) -> FirstMessages:
    """Return the first messages of as many tasks as begin in time, each in a session of its own.

    Args:
        played: environment. A task is tried again `env.retries` times after an environment error, as an episode is.
        items: tasks to begin, with different ids.
        limit_s: seconds after which no further group of tasks begins.

    Raises:
        ConfigError: a larger share of tasks than `env.max_env_error_rate` failed to begin, or all of them.
    """
    pool = local_pool(played.live, played.env, count=1)
    seats = isinstance(played.live, Arena) and len(played.live.policy_seats) > 1
    try:
        begun = await begin_tasks(pool, played.env, [as_match(one) for one in items] if seats else items, limit_s)
    finally:
        await pool.shutdown()
    if seats:
        begun.prompts = {task: first_texts(messages) for task, messages in begun.prompts.items()}
    return begun


async def begin_tasks(pool: SessionPool, env: EnvSettings, items: Sequence[TaskItem], limit_s: float) -> FirstMessages:
    """Return the first messages of tasks that begin in sessions of `pool`; see `first_messages`."""

    async def begin(item: TaskItem) -> list[Message] | EnvError:
        failure = EnvError("no attempt")
        for _ in range(env.retries + 1):
            try:
                session = await pool.open()
                try:
                    return await pool.reset(session, item)
                finally:
                    await pool.close(session)
            except EnvError as error:
                failure = error
        return failure

    begun = FirstMessages()
    until = time.monotonic() + limit_s
    for start in range(0, len(items), SIDE_BY_SIDE):
        group = items[start : start + SIDE_BY_SIDE]
        for item, result in zip(group, await asyncio.gather(*map(begin, group)), strict=True):
            if isinstance(result, EnvError):
                begun.errors[item.id] = str(result)
            else:
                begun.prompts[item.id] = result
        if time.monotonic() > until:
            break
    tried = len(begun.prompts) + len(begun.errors)
    if begun.errors and (not begun.prompts or len(begun.errors) > env.max_env_error_rate * tried):
        raise ConfigError(
            f"env {env.name!r} does not work: of {tried} tasks, {begun.failures}. Each was tried {env.retries + 1} "
            f"times (env.retries={env.retries}), and env.max_env_error_rate={env.max_env_error_rate:g} allows a "
            "smaller share. Correct env.options, or start the server that the environment needs."
        )
    return begun


PROMPTS_S = 5.0
"""Seconds after which no further group of tasks begins."""
ROUNDED_TO = 64
"""Tokens to whose multiple a suggested `data.max_prompt_length` is rounded up."""


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Lengths of the prompts of a split, in tokens of one model.

    Attributes:
        lengths: tokens of each prompt, by task id; at least one.
        tasks: number of tasks in the split, measured or not.
        failures: number of tasks that failed to begin, with an error; empty without any.
    """

    lengths: dict[str, int]
    tasks: int
    failures: str = ""

    @property
    def longest(self) -> str:
        """Id of the task with the longest prompt."""
        return max(self.lengths, key=lambda task: self.lengths[task])

    @property
    def suggested(self) -> int:
        """Suggested `data.max_prompt_length`: the longest prompt, plus a tenth if some tasks were not measured."""
        most = self.lengths[self.longest] * (1.0 if len(self.lengths) == self.tasks else 1.1)
        return -int(-most // ROUNDED_TO) * ROUNDED_TO

    def __str__(self) -> str:
        lengths = sorted(self.lengths.values())
        cuts = quantiles(lengths, n=100, method="inclusive") if len(lengths) > 1 else lengths * 99
        return (
            f"{len(lengths)} of {self.tasks} prompts, in tokens: min {lengths[0]}, median {cuts[49]:.0f}, "
            f"95 % {cuts[94]:.0f}, max {lengths[-1]} (task {self.longest!r})"
            f"{self.failures and f'; {self.failures}'}"
        )


def measure_prompts(played: AgentEnv, model: str, limit: int, limit_s: float = PROMPTS_S) -> PromptLengths:
    """Measure the prompts of `env.train_tasks`.

    Args:
        limit: most tasks that begin, a sample that is the same on every machine.

    Raises:
        ConfigError: the environment, the agent or the model is unknown or does not start, or too many tasks fail to
            begin.
    """
    tasks = played.tasks(played.env.train_tasks)
    played.new_agent()  # an unknown agent is reported before a model is loaded
    path = resolve_model(model, key="--tokens")
    tokenizer, model_type = load_tokenizer(path, "--tokens"), load_config(path, "--tokens").model_type
    count = checked_counter(tokenizer, model_type, played.new_agent, {})
    items = sample_tasks(tasks, limit)
    begun = asyncio.run(first_messages(played, items, limit_s))
    lengths = {task: count(prompt) for task, prompt in begun.prompts.items()}
    return PromptLengths(lengths, len(tasks), begun.failures)


def checked_counter(
    tokenizer: Any, model_type: str | None, new_agent: Callable[[], Agent], template_options: Any
) -> CountTokens:
    """Return the counter of the tokens of an agent's prompts.

    ConfigError: no token builder agrees with the chat template, or the template cannot show the agent's tools.
    """
    from verl_agent.rollout.chat_template import check_tools, choose_builder

    builder = choose_builder(tokenizer, model_type, template_options)
    check_tools(tokenizer, builder, new_agent(), template_options)
    return token_counter(builder, new_agent)


def policy_tokenizer(plan: RunPlan) -> Any:
    """Return the tokenizer of the policy, with the chat template of the run.

    Raises:
        ConfigError: it does not load.
    """
    model = plan.actor.model
    key = "tokenizer_path" if model.get("tokenizer_path") else "path"
    return load_tokenizer(plan.actor.tokenizer_path, f"{plan.actor.model_key}.{key}", model.get("custom_chat_template"))


def check_lengths(plan: RunPlan, report: Callable[[str], None]) -> None:
    """Check that an episode fits into the model's context, and that its turns fit into the response.

    It comes before the check of the machine's memory, which the lengths decide.

    Raises:
        ConfigError: they do not fit.
    """
    key, path, envs = "actor_rollout_ref.model.path", plan.actor.path, plan.envs
    known, response = positions(load_config(path, key)), plan.lengths.response
    check_context(known, plan.lengths.prompt, response, f"{key}={path!r}")
    around = 1
    with suppress(ConfigError):  # `check_prompts` raises it again
        around = template_tokens(policy_tokenizer(plan))
    for one in envs:
        if one.new_agent().context.edits:
            continue
        horizon, owner = one.horizon, "" if len(envs) == 1 else f" of {one.label}"
        turns = {f"horizon.max_turns={horizon.stages}{owner}": max(horizon.stages)}
        if horizon.eval_max_turns is not None:
            turns[f"horizon.eval_max_turns={horizon.eval_max_turns}{owner}"] = horizon.eval_max_turns
        longest = ("data.max_response_length", response)
        if one.episode.max_tokens is not None:
            longest = ("episode.max_tokens", one.episode.max_tokens)
        reply = ("episode.max_tokens_per_turn", one.episode.max_tokens_per_turn)
        if line := check_turns(turns, reply, longest, around):
            report(line)


def check_prompts(plan: RunPlan, run_env: RunEnv, report: Callable[[str], None]) -> None:
    """Check that the model's chat template and `data.max_prompt_length` suit the prompts of the tasks.

    Checks as many tasks as begin in `PROMPTS_S`, of all task sources in turn. A task that fails to begin, also when
    tried again, counts as not checked.
    """
    from verl_agent.rollout.chat_template import describe_role_marks

    path, budget, key = plan.actor.path, plan.lengths.prompt, "actor_rollout_ref.model.path"
    model_config = load_config(path, key)
    check_portable(model_config, f"{key}={path!r}")
    tokenizer = policy_tokenizer(plan)
    check_template_options(tokenizer, plan.lengths.template_options or ())
    count = checked_counter(tokenizer, model_config.model_type, run_env.new_agent, plan.lengths.template_options)
    if warning := describe_role_marks(tokenizer, plan.lengths.template_options):
        report(warning)
    env = run_env.env
    sources = {env.train_tasks, env.eval_tasks, *([env.dev_tasks] if env.dev_tasks not in (None, AUTO) else [])}
    selections = [run_env.tasks(source) for source in sorted(sources)]
    pairs = zip_longest(*(sample_tasks(tasks, len(tasks)) for tasks in selections))
    items = list({item.id: item for pair in pairs for item in pair if item is not None}.values())
    begun = asyncio.run(first_messages(run_env, items, PROMPTS_S))
    lengths = {task: count(prompt) for task, prompt in begun.prompts.items()}
    checked = PromptLengths(lengths, len(items), begun.failures)
    overlong = [task for task, length in lengths.items() if length > budget]
    cuts = plan.lengths.overlong == "truncate_observation"
    for task in overlong if cuts else ():
        if (length := count(cut_observation(begun.prompts[task], 0))) > budget:
            raise ConfigError(
                f"the prompt of task {task!r} has {length} tokens without its observation, more than "
                f"data.max_prompt_length={budget}. data.overlong_prompt=truncate_observation cuts no rules and no "
                "instructions. Raise data.max_prompt_length, or choose a shorter prompt in env.options and "
                "agent.options."
            )
    if not cuts and len(overlong) > env.max_env_error_rate * len(lengths):
        raise ConfigError(
            f"{len(overlong)} of {len(lengths)} checked tasks have a prompt of more than "
            f"data.max_prompt_length={budget} tokens, up to {lengths[checked.longest]} (task "
            f"{checked.longest!r}). Raise it, choose a shorter prompt in env.options and agent.options, or set "
            "data.overlong_prompt=truncate_observation."
        )
    line = f"prompts of {env.name}: {len(lengths)} of {checked.tasks} tasks checked"
    line += f" in {PROMPTS_S:g} s, {checked.tasks - len(lengths)} not checked" if len(lengths) < checked.tasks else ""
    line += f", of which {checked.failures}" if checked.failures else ""
    line += f"; the longest has {lengths[checked.longest]} of {budget} tokens"
    if overlong:
        line += f"; {len(overlong)} exceed them and {'are cut' if cuts else 'are not played'} (data.overlong_prompt)"
    report(line)
