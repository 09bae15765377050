"""Gymnasium: environments with text or small discrete spaces, played by text."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import EnumType
from functools import cache
from typing import Any

from typing_extensions import override

from env_adapters.gymnasium.known import GRID, KNOWN, KnownEnv
from env_adapters.gymnasium.texts import (
    MAX_NUMBERS,
    VIEW,
    describe_grid,
    described,
    observation_text,
    read,
    refusal_of_action,
    refusal_of_observation,
    render_text,
    shows_view,
)
from env_adapters.seeded import Count, Names, OwnRandom, SeededEnv
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.options import checked_options
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import Message, StepResult, TaskItem

MAX_TEXT = 8000
"""Most characters of an observation."""


@dataclass(frozen=True)
class Probe:
    """Properties of an environment, found by making it once.

    Attributes:
        ansi: True if the environment shows its state as text.
        grid: True for an observation of MiniGrid.
        names: name of each action of a Discrete space, in lower case; may be empty.
        known: what a model has to know.
    """

    ansi: bool
    grid: bool
    names: tuple[str, ...]
    known: KnownEnv


class Gymnasium(SeededEnv):
    """Environment of Gymnasium's registry, with its own rewards. It ends where Gymnasium terminates or truncates."""

    env, module = "gymnasium", "gymnasium"
    action_format = LineFormat(placeholder="<action>")

    @checked_options
    def __init__(
        self,
        names: Names = "FrozenLake-v1",
        kwargs: Mapping[str, Any] | None = None,
        train: Count = 1000,
        test: Count = 100,
        success_reward: float | None = None,
        invalid_reward: float | None = None,
        allow_unseeded: bool = False,
    ) -> None:
        """Make each environment once, which reveals its spaces.

        Args:
            names: id of the registry, such as `Taxi-v4`; `module:Name-v0` imports the module first. Or a list of ids.
            kwargs: arguments of `gymnasium.make`, such as `{is_slippery: false}`.
            train: number of training tasks of each id, which are seeds.
            test: number of held-out tasks of each id.
            success_reward: return from which a task counts as solved; null for a known one, else 1.0.
            invalid_reward: reward of a text that names no action; null for a known one, else 0.
            allow_unseeded: see `SeededEnv`.
        """
        super().__init__(names, train, test, allow_unseeded)
        self.kwargs, self.invalid_reward = dict(kwargs or {}), invalid_reward
        try:
            self._key = json.dumps(self.kwargs, sort_keys=True)
        except TypeError as error:
            raise ConfigError(f"env.options.kwargs={kwargs!r} is not allowed. Allowed: JSON values.") from error
        self.library()
        probes = [_probe(name, self._key) for name in self.names]
        thresholds = {1.0 if probe.known.success is None else probe.known.success for probe in probes}
        if success_reward is None and len(thresholds) > 1:
            raise ConfigError(
                f"env.options.names={list(self.names)} count as solved at different returns: {sorted(thresholds)}. "
                "Set env.options.success_reward, or choose one environment."
            )
        self.success_reward = thresholds.pop() if success_reward is None else float(success_reward)
        self._env: Any = None

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        """Make the environment, reset it with the seed of `item`, and show rules and first observation."""
        await self.close()
        name, seed = item.data["name"], item.data["seed"]
        self._found, self._random = _probe(name, self._key), OwnRandom(seed)
        with self._random():
            self._env = _make(name, self.kwargs, "ansi" if self._found.ansi else None)
            try:
                returned = self._env.reset(seed=seed)
            except self.library().error.DependencyNotInstalled as error:
                raise ConfigError(f"env.options.names={name!r} does not begin: {error}.") from error
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            raise ConfigError(
                f"env.options.names={name!r}: reset() returned {shorten(repr(returned), 100)}. Allowed: a tuple of "
                "observation and info, as Gymnasium has it. An environment of Gym needs a wrapper."
            )
        self._ended, rules = False, self._found.known.rules or f"You play {name}."
        self._allowed = described(self._env.action_space, self._found.names)
        return [
            {"role": "system", "content": f"{rules} Actions: {self._allowed}."},
            {"role": "user", "content": self._text(returned[0])},
        ]

    @override
    async def step(self, action: str) -> StepResult:
        if self._ended:
            return StepResult("The game has ended.", terminated=True)
        chosen = read(self._env.action_space, self._found.names, action)
        if chosen is None:
            reward = self._found.known.invalid_reward if self.invalid_reward is None else self.invalid_reward
            text = f"That is no action. Allowed: {self._allowed}."
            return StepResult(text, float(reward), info={"invalid_action": 1.0})
        with self._random():
            observation, reward, terminated, truncated, _ = self._env.step(chosen)
        self._ended = bool(terminated or truncated)
        if self._ended and (end_reward := self._found.known.end_reward):
            reward = float(reward) + end_reward
        info = {"time_limit": 1.0} if truncated and not terminated else {}
        return StepResult(self._text(observation), reward, self._ended, info)

    def _text(self, observation: Any) -> str:
        """Return an observation, and the picture of the state where there is one, as text."""
        if self._found.grid:
            return describe_grid(observation)
        parts = [render_text(self._env.render())] if self._found.ansi else []
        core = self._env.unwrapped
        if hasattr(core, "decode") and hasattr(core, "locs"):  # Taxi, whose colours are lost
            row, column, passenger, goal = core.decode(observation)
            places = [*"RGYB", "the taxi"]
            where = f"Passenger: {places[passenger]}. Destination: {places[goal]}."
            parts.append(f"Taxi: row {row}, column {column}. {where}")
        elif not self._found.ansi:
            parts.append(observation_text(observation, self._found.known.parts))
        return shorten("\n".join(parts) or "(nothing)", MAX_TEXT)

    @override
    async def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


@cache
def _probe(name: str, kwargs: str) -> Probe:
    """Make an environment once.

    Args:
        name: its id.
        kwargs: arguments of `gymnasium.make` as JSON.

    Raises:
        ConfigError: it cannot be made, or its spaces are not for text.
    """
    env = _make(name, json.loads(kwargs), None)
    try:
        core, space = env.unwrapped, env.observation_space
        keys = set(space.spaces) if isinstance(getattr(space, "spaces", None), dict) else set()
        grid, ansi = False, "ansi" in (env.metadata.get("render_modes") or ())
        if keys >= VIEW:
            with OwnRandom(0)():
                grid = shows_view(env.reset(seed=0)[0], core)
        reason = refusal_of_action(env.action_space) or ("" if grid or ansi else refusal_of_observation(space))
        if reason:
            raise ConfigError(
                f"env.options.names={name!r} is not for text: {reason}. Allowed: texts, discrete numbers and arrays of "
                f"at most {MAX_NUMBERS} numbers, and discrete actions. Or wrap it, register the wrapper in a module of "
                "yours, and set env.options.names=my_module:MyEnv-v0."
            )
        known = GRID if grid else KNOWN.get(re.sub(r"^seeded/|-v\d+$", "", name), KnownEnv())
        found: Sequence[str] = known.actions
        if isinstance(getattr(core, "actions", None), EnumType) and hasattr(env.action_space, "n"):
            found = _names_by_value(core.actions, int(getattr(env.action_space, "start", 0)))
        elif hasattr(core, "get_action_meanings"):
            found = tuple(core.get_action_meanings())
        if len(found) != getattr(env.action_space, "n", 0):
            found = ()
        success = known.success if known.success is not None else env.spec.reward_threshold
        if success is not None and success <= 0:
            success = None  # doing nothing has a return of 0, and would solve the task
        return Probe(ansi, grid, tuple(one.casefold() for one in found), replace(known, success=success))
    finally:
        env.close()


def _names_by_value(actions: Any, first: int) -> Sequence[str]:
    """Return the names of an enum's members in the order of their values, which count up from `first`; else none."""
    named = {one.value: one.name for one in actions if type(one.value) is int}
    values = sorted(named)
    return [named[value] for value in values] if values == list(range(first, first + len(actions))) else ()


def _make(name: str, kwargs: Mapping[str, Any], render_mode: str | None) -> Any:
    gymnasium = Gymnasium.library()
    import env_adapters.gymnasium.lakes  # noqa: F401 - registers its environment

    with suppress(ImportError):
        import minigrid  # noqa: F401 - registers its environments
    mode = {} if render_mode is None else {"render_mode": render_mode}
    try:
        return gymnasium.make(name, disable_env_checker=True, **mode, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        known = did_you_mean(name, gymnasium.registry, 400)
        raise ConfigError(f"env.options.names={name!r} is not an environment of Gymnasium. {known}") from error
    except Exception as error:  # boundary to other people's environments
        raise ConfigError(f"env.options.names={name!r} cannot be made: {type(error).__name__}: {error}") from error
