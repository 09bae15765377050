"""Base class of adapters to other libraries' environments: a task is the name of an environment and a seed."""

import asyncio
import random
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from verl_agent.envs.base import EnvAdapter, Hosting, Requirement
from verl_agent.envs.options import checked_options
from verl_agent.envs.testing.success import random_action
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

FIRST_TEST_SEED = 1_000_000
"""Seed of the first held-out task; training tasks have the seeds from 0 on."""
Name = Annotated[str, Field(min_length=1)]
Names = Name | Annotated[Sequence[Name], Field(min_length=1)]
"""Name of an environment, or a list of names."""
Count = Annotated[int, Field(ge=1, le=1_000_000)]
"""Number of tasks of an environment in a split."""
PROBES = ("0", "1", "no such action")
"""Actions of most games, and one of none."""
PAIRS, LEAST_PAIRS = 24, 4
"""Pairs of episodes that must agree, all together and of each environment at least."""
TURNS = 8
"""Most actions of such an episode."""
_lock = RLock()


class SeededEnv(EnvAdapter):
    """Environment of another library, by name and seed.

    Subclasses set `env` and `module`, and check the names.
    """

    splits = ("train", "test")
    hosting = Hosting(threads=1)  # sessions of a host may share generators of random numbers
    env: ClassVar[str]
    """Registered name of the adapter."""
    module: ClassVar[str] = ""
    """Python module of the other library; empty for a server."""

    @checked_options
    def __init__(self, names: Names, train: Count, test: Count, allow_unseeded: bool) -> None:
        """Check the options that all adapters of this kind have.

        Args:
            names: name of the environment, or a list of names.
            train: number of training tasks of each environment, 1 to 1,000,000.
            test: number of held-out tasks of each environment, 1 to 1,000,000.
            allow_unseeded: True to train with groups although two episodes of one task may begin differently.
        """
        listed = [names] if isinstance(names, str) else names
        if len(set(listed)) < len(listed):
            raise ConfigError(f"env.options.names={names!r} has a name twice.")
        self.names, self.counts, self.allow_unseeded = tuple(listed), {"train": train, "test": test}, allow_unseeded

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        """Return the package of the other library."""
        if not cls.module:
            return ()
        return [Requirement.package(cls.module, cls.install(), "the games that it plays")]

    @classmethod
    def install(cls) -> str:
        """Return the command that installs the other library."""
        return f"pip install 'verl-agent[{cls.env.replace('_', '-')}]'"

    @classmethod
    def library(cls) -> ModuleType:
        """Import the other library.

        Raises:
            ConfigError: it is not installed.
        """
        try:
            return import_module(cls.module)
        except ImportError as error:
            raise ConfigError(
                f"env.name={cls.env!r} needs the package {cls.module}, which does not import ({error}). "
                f"Install it: {cls.install()}."
            ) from error

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return a task for each name and seed."""
        self.check_split(split)
        first = FIRST_TEST_SEED if split == "test" else 0
        seeds = range(first, first + self.counts[split])
        return [
            TaskItem(self.env, f"{name}:{seed}", {"name": name, "seed": seed}, name)
            for name in self.names
            for seed in seeds
        ]

    @property
    def deterministic(self) -> bool:  # type: ignore[override]  # first use plays
        """True if tasks of each environment gave the same texts twice, in fresh sessions."""
        args, options = self._arguments
        return _replays(type(self), _Arguments(args, options))

    @property
    def seeded(self) -> bool:  # type: ignore[override]  # first use plays
        """True if the environment is deterministic, or if the options allow another one."""
        return self.allow_unseeded or self.deterministic

    @property
    def probes(self) -> Sequence[str]:
        """Actions with which two episodes of one task are compared."""
        return PROBES

    @abstractmethod
    async def close(self) -> None:
        """Release the environment of the other library."""


class _Arguments:
    """Arguments of an adapter as a key of a cache."""

    def __init__(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        self.args, self.options = args, dict(options)
        self._key = repr((args, sorted(options.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Arguments) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@cache
def _replays(adapter: type[SeededEnv], arguments: _Arguments) -> bool:
    """Play training tasks twice with probing and random actions, and compare the texts.

    Where luck changes a quarter of the episodes of an environment, all `PAIRS` agree in 1 of 1,000 tests.
    """

    async def opening(item: TaskItem, seed: int) -> list[Any]:
        session, draws = adapter(*arguments.args, **arguments.options), random.Random(seed)
        try:
            texts: list[Any] = [await session.reset(item)]
            messages, probes = list(texts[0]), list(session.probes)
            while len(texts) <= TURNS and (len(texts) == 1 or not texts[-1].terminated):
                action = probes.pop(0) if probes and not seed % 2 else random_action(session, draws, messages)
                try:
                    texts.append(await session.step(action))
                except ConfigError:
                    raise
                except Exception as error:  # boundary: a game may raise an exception at an illegal move
                    return [*texts, type(error)]
                messages.append({"role": "user", "content": texts[-1].observation})
        finally:
            await session.close()
        return texts

    async def compare() -> bool:
        env = adapter(*arguments.args, **arguments.options)
        size, pairs = env.counts["train"], max(LEAST_PAIRS, PAIRS // len(env.names))
        items = env.tasks("train")
        chosen = [(items[size * place + pair % size], pair) for place in range(len(env.names)) for pair in range(pairs)]
        for one in chosen:
            if await opening(*one) != await opening(*one):
                return False
        return True

    with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop of its own
        return thread.submit(asyncio.run, compare()).result()


class OwnRandom:
    """Process-wide generators of random numbers (`random` and NumPy's), as one session uses them.

    Libraries that draw from them would otherwise change the episodes of other sessions.
    """

    def __init__(self, seed: int) -> None:
        with self._kept():
            random.seed(seed)
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed(seed)
            self._state = _state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Use the session's generators inside the block, and those of the process again after it."""
        with self._kept():
            _restore(self._state)
            try:
                yield
            finally:
                self._state = _state()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        with _lock:
            before = _state()
            try:
                yield
            finally:
                _restore(before)


def _state() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def _restore(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy"].random.set_state(state[1])
