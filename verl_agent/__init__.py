"""Multi-turn reinforcement learning of language-model agents on unmodified verl.

The names below are the public API. They are imported on first use, so `import verl_agent` is fast and loads neither
torch nor verl. Everything else is internal and may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_agent.agents.base import Agent as Agent
    from verl_agent.agents.check import check_agent as check_agent
    from verl_agent.api import list_envs as list_envs
    from verl_agent.api import make_agent as make_agent
    from verl_agent.api import make_env as make_env
    from verl_agent.api import play as play
    from verl_agent.api import play_sync as play_sync
    from verl_agent.config.algorithms import Estimator as Estimator
    from verl_agent.envs.action_format import ActionFormat as ActionFormat
    from verl_agent.envs.action_format import FenceFormat as FenceFormat
    from verl_agent.envs.action_format import LineFormat as LineFormat
    from verl_agent.envs.action_format import TagFormat as TagFormat
    from verl_agent.envs.arena import Arena as Arena
    from verl_agent.envs.base import EnvAdapter as EnvAdapter
    from verl_agent.envs.base import Hosting as Hosting
    from verl_agent.envs.base import Requirement as Requirement
    from verl_agent.envs.base import SubGoal as SubGoal
    from verl_agent.envs.testing.check import check_adapter as check_adapter
    from verl_agent.envs.tool_env import ToolEnv as ToolEnv
    from verl_agent.envs.tools import Tool as Tool
    from verl_agent.envs.tools import tool as tool
    from verl_agent.errors import AgentError as AgentError
    from verl_agent.errors import ConfigError as ConfigError
    from verl_agent.errors import EnvError as EnvError
    from verl_agent.errors import EnvErrorLimitError as EnvErrorLimitError
    from verl_agent.errors import EnvTimeoutError as EnvTimeoutError
    from verl_agent.errors import HostLostError as HostLostError
    from verl_agent.errors import PoolFullError as PoolFullError
    from verl_agent.errors import UnknownSessionError as UnknownSessionError
    from verl_agent.horizon import Horizon as Horizon
    from verl_agent.horizon import Outcome as Outcome
    from verl_agent.horizon import Schedule as Schedule
    from verl_agent.oversight.base import Decision as Decision
    from verl_agent.oversight.base import Overseer as Overseer
    from verl_agent.oversight.base import Proposal as Proposal
    from verl_agent.results.results import summarize as summarize
    from verl_agent.rollout.policy import Policy as Policy
    from verl_agent.trace.record_files import read_records as read_records
    from verl_agent.training.estimator_check import check_estimator as check_estimator
    from verl_agent.training.own_estimators import EstimatorBatch as EstimatorBatch
    from verl_agent.types import DemoAction as DemoAction
    from verl_agent.types import Episode as Episode
    from verl_agent.types import Message as Message
    from verl_agent.types import Reply as Reply
    from verl_agent.types import StepResult as StepResult
    from verl_agent.types import StopReason as StopReason
    from verl_agent.types import TaskItem as TaskItem
    from verl_agent.types import ToolCall as ToolCall
    from verl_agent.types import Turn as Turn
    from verl_agent.viewer.episode_html import show_episode as show_episode

_MODULES = {
    "verl_agent.agents.base": ("Agent",),
    "verl_agent.agents.check": ("check_agent",),
    "verl_agent.api": ("list_envs", "make_agent", "make_env", "play", "play_sync"),
    "verl_agent.config.algorithms": ("Estimator",),
    "verl_agent.envs.action_format": ("ActionFormat", "FenceFormat", "LineFormat", "TagFormat"),
    "verl_agent.envs.arena": ("Arena",),
    "verl_agent.envs.base": ("EnvAdapter", "Hosting", "Requirement", "SubGoal"),
    "verl_agent.envs.testing.check": ("check_adapter",),
    "verl_agent.envs.tool_env": ("ToolEnv",),
    "verl_agent.envs.tools": ("Tool", "tool"),
    "verl_agent.errors": (
        "AgentError",
        "ConfigError",
        "EnvError",
        "EnvErrorLimitError",
        "EnvTimeoutError",
        "HostLostError",
        "PoolFullError",
        "UnknownSessionError",
    ),
    "verl_agent.oversight.base": ("Decision", "Overseer", "Proposal"),
    "verl_agent.results.results": ("summarize",),
    "verl_agent.horizon": ("Horizon", "Outcome", "Schedule"),
    "verl_agent.rollout.policy": ("Policy",),
    "verl_agent.trace.record_files": ("read_records",),
    "verl_agent.training.estimator_check": ("check_estimator",),
    "verl_agent.training.own_estimators": ("EstimatorBatch",),
    "verl_agent.types": (
        *("DemoAction", "Episode", "Message", "Reply", "StepResult", "StopReason", "TaskItem", "ToolCall", "Turn"),
    ),
    "verl_agent.viewer.episode_html": ("show_episode",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'verl_agent' has no attribute {name!r}. Public names: {', '.join(__all__)}.")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
