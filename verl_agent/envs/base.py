"""What an environment is: tasks, and a conversation that ends. Text only; no tokens, no model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias

from verl_agent.envs.action_format import ActionFormat, LineFormat
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

Oracle: TypeAlias = Callable[[str], DemoAction]
"""The next move, by what is seen; asked once a turn, in order."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """What one host process of an environment may hold; every number but `threads` is >= 1.

    Attributes:
        threads: threads that its sessions share; None gives each session a thread of its own. 0 calls them in the
            host's own loop, one after another, which is the fastest for what computes for a few milliseconds and
            never waits: no time limit reaches a call that does not return, until the host is killed.
        sessions: most sessions at once.
        busy: sessions from which another host is started rather than this one filled further.
        episodes: episodes after which it is replaced, once its sessions have ended.
        memory_mb: MiB, with the processes that it started, above which it is replaced likewise.
    """

    threads: int | None = None
    sessions: int = 64
    busy: int = 16
    episodes: int = 20_000
    memory_mb: int = 2048

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            least = 0 if name == "threads" else 1
            if value is not None and value < least:
                raise ConfigError(f"Hosting.{name} must be >= {least}, got {value}.")

    def bounded(self, sessions: int | None = None, memory_mb: int | None = None) -> "Hosting":
        """The same with other limits, where they are given."""
        return replace(self, sessions=sessions or self.sessions, memory_mb=memory_mb or self.memory_mb)


class EnvAdapter(ABC):
    """One session of an environment; the class also lists the tasks.

    An adapter is created with the keyword arguments of `env.options`, plays one episode, and is
    closed. It lives in a host process beside other sessions and is called in a thread of its own, or
    in one that `hosting` lets it share, so its calls may compute or wait as long as they need; calls
    that exceed `env.timeout_s` end the episode. Anything it raises ends the episode too.
    `check_adapter()` tests a new one against this contract.
    """

    splits: ClassVar[Sequence[str]] = ("train", "test")
    """Names that `tasks()` accepts."""

    success_reward: ClassVar[float] = 1.0
    """Return from which a task counts as solved."""

    hosting: ClassVar[Hosting] = Hosting()
    """What a host process may hold of it."""

    action_format: ClassVar[ActionFormat] = LineFormat()
    """How replies mark an action. Agents explain it to the model and read actions by it."""

    @classmethod
    def with_options(cls, options: Mapping[str, Any]) -> type["EnvAdapter"]:
        """The class that `env.options` mean: itself, unless its tasks, `success_reward` or `form` depend on them."""
        return cls

    @classmethod
    @abstractmethod
    def tasks(cls, split: str) -> Sequence[TaskItem]:
        """The items of `split`, in the same order on every machine. `split` is one of `splits`."""

    @abstractmethod
    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin `item`; returns the rules and what is seen first, ending with a user message.

        How a reply must look is not said here: the agent adds that.
        """

    @abstractmethod
    async def step(self, action: str) -> StepResult:
        """Take one action, bare as `form` found it. What cannot be done is answered with an observation that says so.

        Actions that are none, or not possible, are counted by `info={"invalid_action": 1.0}`.
        """

    async def close(self) -> None:  # noqa: B027 - most environments have nothing to release
        """Release what the session holds. May be called more than once."""

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Moves that solve `item`, for supervised warm starts and tests.

        Raises:
            NotImplementedError: no oracle exists; that is the default.
        """
        raise NotImplementedError(f"{type(self).__name__} has no oracle.")

    def oracle(self, item: TaskItem) -> Oracle | None:
        """What solves `item` by what it sees, where moves depend on that; None, the default: `demonstration` does.

        Its episodes are recorded by an evaluation with `model.path=oracle`, and learnt from as any are.
        """
        return None
