"""Registry of agents, in this package and in every other one that registers agents by entry point."""

import inspect
from functools import cache

from verl_agent import registry
from verl_agent.agents.base import Agent
from verl_agent.agents.context import make_context
from verl_agent.agents.settings import AgentSettings
from verl_agent.envs.action_format import ActionFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError, describe_exception, did_you_mean

ENTRY_POINT_GROUP = "verl_agent.agents"
OPTION = "turns_left"
"""Option of every agent, see `Agent.with_turns_left`."""
RETRY_OPTION = "retry_failed"
"""Option of every agent, see `verl_agent.rollout.retrying`."""


@cache  # called for every episode; a search of all installed packages takes milliseconds
def load_agent(name: str) -> type[Agent]:
    """Return the agent class that is registered as `name`.

    Raises:
        ConfigError: see `verl_agent.registry.load_registered`.
    """
    return registry.load_class(ENTRY_POINT_GROUP, name, "agent.name", Agent)  # type: ignore[type-abstract]


def make_agent(settings: AgentSettings, action_format: ActionFormat) -> Agent:
    """Return an agent for one episode.

    Raises:
        ConfigError: `load_agent` rejects the name, or an option or the context is unknown or not allowed.
    """
    agent = load_agent(settings.name)
    own = [option for option in inspect.signature(agent).parameters if option not in ("action_format", "context")]
    known = [*own, OPTION, RETRY_OPTION]
    for key in settings.options:
        if key not in known:
            remedy = did_you_mean(str(key), known)
            raise ConfigError(f"agent.options.{key} is not an option of {settings.name!r}. {remedy}")
    options = dict(settings.options)
    turns_left = options.pop(OPTION, False)
    if not isinstance(turns_left, bool):
        raise ConfigError(f"agent.options.turns_left={turns_left!r} is not allowed. Allowed: true, false.")
    retries = options.pop(RETRY_OPTION, 0)
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise ConfigError(f"agent.options.retry_failed={retries!r} is not allowed. Allowed: a whole number >= 0.")
    try:
        made = agent(action_format, make_context(settings.context), **options)
    except ConfigError:
        raise
    except Exception as error:  # boundary: the constructor is the author's code
        raise ConfigError(f"agent.options of {settings.name!r}: {describe_exception(error)}") from error
    made.turns_left, made.retry_failed = turns_left, retries
    return made


def check_retries(settings: AgentSettings, env: EnvAdapter) -> None:
    """Check that failed tasks are only retried where the environment ends them.

    Raises:
        ConfigError: `agent.options.retry_failed` has no effect.
    """
    retries = settings.options.get(RETRY_OPTION)
    if retries and not env.ends_failed_tasks:
        raise ConfigError(
            f"agent.options.retry_failed={retries!r} has no effect: in {type(env).__name__} only success ends a task, "
            "and the turn limit ends the episode. Leave it out, or raise the turn limit."
        )
