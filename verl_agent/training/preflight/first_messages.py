"""First messages of tasks, which begin as episodes do and are not played."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from verl_agent.config.settings import AgentEnv
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.session import SessionPool
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError, EnvError
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
    try:
        return await begin_tasks(pool, played.env, items, limit_s)
    finally:
        await pool.shutdown()


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
    for group in _groups(items, SIDE_BY_SIDE):
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


def _groups(items: Sequence[TaskItem], size: int) -> Iterator[list[TaskItem]]:
    """Yield the items in lists of `size`; the last list may be shorter."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group
