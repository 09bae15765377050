"""The base class of environments: tasks, and a conversation that ends. Text only; no tokens, no model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any, Self, TypeAlias

from verl_agent.envs.action_format import ActionFormat, LineFormat
from verl_agent.envs.action_target import ActionTarget, named_action
from verl_agent.envs.drawing import Drawing
from verl_agent.errors import ConfigError, ContractError, did_you_mean
from verl_agent.types import DemoAction, Episode, Message, StepResult, TaskItem
from verl_agent.values import NUMBER, to_number

Oracle: TypeAlias = Callable[[str], DemoAction]
"""Returns the next action for an observation; called once a turn, in order."""


HOST_MB = 64
"""MiB that a host takes before its first session, about; with a lower limit every host would be replaced."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """Limits of one host process of an environment.

    Attributes:
        threads: number of threads that the sessions of a host share, >= 0. None gives each session its own thread.
            0 calls all sessions in the event loop of the host, one after another. That is the fastest for
            environments that compute for a few milliseconds and never wait, but a call that does not return has no
            time limit: the host is killed with all its sessions.
        sessions: most sessions of a host at once, >= 1.
        busy: number of sessions from which another host is started instead of adding one here, >= 1.
        episodes: number of episodes after which a host is replaced once its sessions have ended, >= 1.
        memory_mb: memory in MiB, child processes included, above which a host is replaced in the same way, >=
            `HOST_MB`.
    """

    threads: int | None = None
    sessions: int = 64
    busy: int = 16
    episodes: int = 20_000
    memory_mb: int = 2048

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            least = {"threads": 0, "memory_mb": HOST_MB}.get(name, 1)
            if value is not None and value < least:
                raise ConfigError(f"Hosting.{name} must be >= {least}, got {value}.")

    def bounded(self, sessions: int | None = None, memory_mb: int | None = None) -> "Hosting":
        """Return a copy with other limits; None keeps the limit."""
        return replace(self, sessions=sessions or self.sessions, memory_mb=memory_mb or self.memory_mb)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that an environment needs on the machine; shown by `verl-agent doctor`.

    Attributes:
        name: name of the package, program or data set.
        present: True if this machine has it.
        install: command that installs it.
        note: version or path if it is present; otherwise what does not work without it.
    """

    name: str
    present: bool
    install: str
    note: str = ""

    @classmethod
    def package(cls, module: str, install: str, note: str = "") -> "Requirement":
        """Return the requirement of a Python package."""
        spec = find_spec(module)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        return cls(f"package {module}", spec is not None, install, folders[0] if folders else note)


@dataclass(frozen=True, slots=True)
class SubGoal:
    """Part of a task, as its environment counts it.

    Attributes:
        kind: kind of sub-goal, the same in all tasks of its kind, such as `GoalFind`.
        text: what has to be done in this task.
        reached: True if the episode has done it.
    """

    kind: str
    text: str
    reached: bool


class EnvAdapter(ABC):
    """Environment with its options: lists the tasks and plays one episode at a time.

    The keyword arguments of the constructor are `env.options`. The constructor checks and stores them; it must be
    cheap, because every session constructs the class again. `reset()` takes resources and `close()` releases them.

    An instance plays one episode and is closed. Sessions run in host processes, side by side. Their calls run in
    threads, so they may compute or wait. A call that exceeds `env.timeout_s` ends its episode, and so does any
    exception. `check_adapter()` tests a new adapter against this contract.

    The eight attributes below may be set by the class or, where they depend on options, by the constructor.
    """

    splits: Sequence[str] = ("train", "test")
    """Names that `tasks()` accepts."""

    success_reward: float = 1.0
    """Return from which a task counts as solved."""

    deterministic: bool = True
    """True if a task and its actions always give the same texts and rewards, and change nothing outside the session.

    After an environment error the actions of an episode are then replayed in a fresh session, so that it continues.
    """

    seeded: bool = True
    """False if two episodes of one task may begin differently. Estimators that compare the episodes of a task are then
    refused."""

    ends_failed_tasks: bool = True
    """False if only success ends an episode, so that a turn limit ends the others; `agent.options.retry_failed`, which
    starts a task anew that the environment has ended, is then refused."""

    hosting: Hosting = Hosting()
    """Limits of one host process that runs sessions of this environment."""

    action_format: ActionFormat = LineFormat()
    """Syntax of an action inside a reply. Agents explain it to the model and parse replies with it."""

    only_agent: str = ""
    """Name of the only agent that can act in it; "" for any agent."""

    names_elements: bool = False
    """True if `describe_action` returns the names of elements, so that approval policies may have rules about them."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Keep a copy of the arguments, for `new_session()` and for pickling."""
        env = super().__new__(cls)
        env._arguments = deepcopy((args, options))
        return env

    def __init__(self) -> None:  # noqa: B027 - most environments override it
        """Take no options."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the class and the options, never the state of a session."""
        return _construct, (type(self), *self._arguments)

    def new_session(self) -> Self:
        """Return a fresh instance with the same options; a session that changes its options changes no other."""
        args, options = deepcopy(self._arguments)
        return type(self)(*args, **options)

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        """Return what the environment needs besides Python packages that its modules import; none by default."""
        return ()

    @abstractmethod
    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the items of `split`, one of `splits`, in the same order on every machine."""

    def check_split(self, split: str) -> None:
        """Raise ConfigError if `split` is not one of `splits`. For the first line of `tasks()`."""
        if split not in self.splits:
            raise ConfigError(f"{type(self).__name__} has no split {split!r}. {did_you_mean(split, self.splits)}")

    @abstractmethod
    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin `item` and return the rules and the first observation.

        The last message is a user message. The agent adds the format of replies, so it is not described here.
        """

    @abstractmethod
    async def step(self, action: Any) -> StepResult:
        """Carry out one action: the text that `action_format` parsed from a reply, or a `ToolCall` in a `ToolEnv`.

        An action that is unknown or impossible raises nothing. It returns an observation that says so, and
        `info={"invalid_action": 1.0}`, which is counted.
        """

    async def close(self) -> None:  # noqa: B027 - most environments have nothing to release
        """Release the resources of the session. May be called more than once."""

    def describe_action(self, action: Any, observation: str) -> ActionTarget:
        """Return the target of an action, as approval policies match it; computed from the texts alone.

        The default knows the tool or the tag of the action and no element, and reads single spaces. An environment that
        accepts other spellings of its actions overrides it with its own parser.

        Args:
            action: action of a reply.
            observation: last message of the environment before the reply.
        """
        return named_action(self.action_format, action)

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Return actions that solve `item`, for supervised warm starts and tests.

        Raises:
            NotImplementedError: the environment has no oracle; the default.
        """
        raise NotImplementedError(f"{type(self).__name__} has no oracle.")

    @classmethod
    def draw(cls, episode: Episode) -> Sequence[Sequence[Drawing]]:
        """Return drawings of an episode's states for `verl-agent view`; none by default.

        It is called in the process of the viewer, with a recorded episode. Most environments compute the states again
        from the task and the actions, so that training pays nothing.

        Returns:
            One list for the start and one for the state after each turn; a shorter result draws the first ones.
        """
        return ()

    def sub_goals(self, episode: Episode) -> Sequence[SubGoal]:
        """Return the parts of a recorded episode's task and whether it reached them; none by default.

        Called by `verl-agent failures`, outside any session, so it may play the actions again.

        Raises:
            EnvError: the environment fails.
        """
        return ()

    def oracle_turns(self, item: TaskItem) -> int | None:
        """Return the number of actions with which an oracle solves `item`, or None, the default, if none is known.

        Called once for each task and worker, so it must be cheap; most environments that plan quickly return
        `len(self.demonstration(item))`. Turns beyond it count as over-interaction. Raises nothing.
        """
        return None

    def oracle(self, item: TaskItem) -> Oracle | None:
        """Return an oracle whose actions depend on the observations, or None, the default, to use `demonstration`.

        An evaluation with `model.path=oracle` plays and records its episodes.
        """
        return None


def read_success_reward(env: EnvAdapter) -> float:
    """Return `EnvAdapter.success_reward` as a number of Python.

    Raises:
        ContractError: it is not a finite number.
    """
    value = env.success_reward
    if (number := to_number(value)) is None:
        raise ContractError(f"{type(env).__name__}.success_reward={value!r:.100} is not allowed. {NUMBER}")
    return number


def _construct(adapter: type[EnvAdapter], args: tuple[Any, ...], options: dict[str, Any]) -> EnvAdapter:
    return adapter(*args, **options)
