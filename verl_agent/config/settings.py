"""The sections that this package adds to verl's config, typed and checked before anything starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from verl_agent.agents.settings import AgentSettings
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.envs.settings import EnvSettings, HostSettings
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.horizon import Adaptive, Horizon
from verl_agent.rollout.settings import EpisodeSettings

T = TypeVar("T")

PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}
"""Types of settings that can be told by their values, and what a person calls them."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All sections of this package."""

    env: EnvSettings
    horizon: Horizon
    episode: EpisodeSettings
    agent: AgentSettings = field(default_factory=AgentSettings)
    credit: RewardShaping = field(default_factory=RewardShaping)


def section(name: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """Build one typed section from a mapping.

    Raises:
        ConfigError: a key that does not exist, one that is missing, or a value that cannot be meant.
    """
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]  # kind is a dataclass
    for key in values:
        if key not in known:
            raise ConfigError(f"{name}.{key} is not a setting. {did_you_mean(str(key), known)}")
    for key, hint in get_type_hints(kind).items():
        allowed = get_args(hint) if get_origin(hint) is UnionType else (hint,)
        if key in values and set(allowed) <= PLAIN.keys() and not _is_of(values[key], allowed):
            said = " or ".join(PLAIN[one] for one in allowed)
            raise ConfigError(f"{name}.{key}={values[key]!r} is not allowed. Allowed: {said}.")
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"section {name!r} is not complete or has a value of a wrong type: {error}") from error


def _is_of(value: object, types: Sequence[type]) -> bool:
    """Whether a value is of one of the types: whole numbers are numbers, true and false are none."""
    if isinstance(value, int) and not isinstance(value, bool) and float in types:
        return True
    return type(value) in types


def run_settings(config: Mapping[str, Any]) -> RunSettings:
    """The sections `env`, `horizon`, `episode`, `agent` and `credit` of a whole, resolved config of one environment.

    Those of a mixture are `verl_agent.config.mixture.run_envs`.

    Raises:
        ConfigError: see `section`.
    """
    for name in ("env", "horizon", "episode", "agent"):
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(f"the config has no section {name!r}. Start from a recipe in recipes/.")
    hosts = section("env.hosts", HostSettings, config["env"].get("hosts") or {})
    horizon = dict(config["horizon"])
    if horizon.get("adaptive") is not None:
        if not isinstance(horizon["adaptive"], Mapping):
            raise ConfigError(
                f"horizon.adaptive must be a section such as {{success_above: 0.7}}, got {horizon['adaptive']!r}."
            )
        horizon["adaptive"] = section("horizon.adaptive", Adaptive, horizon["adaptive"])
    return RunSettings(
        section("env", EnvSettings, {**config["env"], "hosts": hosts}),
        section("horizon", Horizon, horizon),
        section("episode", EpisodeSettings, config["episode"]),
        section("agent", AgentSettings, config["agent"]),
        section("credit", RewardShaping, config.get("credit") or {}),
    )
