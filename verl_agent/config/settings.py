"""The sections that this package adds to verl's config, typed and checked before anything starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from verl_agent.envs.hosts.settings import HostSettings
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.config.reward_shaping import Credit
from verl_agent.horizon import Adaptive, Horizon

T = TypeVar("T")

PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}
"""Types of settings that can be told by their values, and what a person calls them."""


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """Section `env`.

    Attributes:
        name: registered name of the environment.
        train_tasks: tasks to train on: a split of the environment, or a file with one task id a line.
        eval_tasks: tasks to validate and evaluate on, likewise.
        overlap: whether a reinforcement learning run may validate on tasks that it trains on.
        options: keyword arguments of its adapter.
        timeout_s: seconds that one reset or step may take.
        retries: further tries of an episode whose environment failed.
        max_fault_share: share of a batch's episodes, 0 to 1, that may still fail before the run stops.
        hosts: where its sessions live.
        mixture: several environments in one run, see `verl_agent.config.mixture`; None for one.
    """

    name: str
    train_tasks: str = "train"
    eval_tasks: str = "test"
    overlap: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0
    retries: int = 2
    max_fault_share: float = 0.5
    hosts: HostSettings = field(default_factory=HostSettings)
    mixture: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ConfigError(f"env.timeout_s must be > 0 seconds, got {self.timeout_s}.")
        if self.retries < 0:
            raise ConfigError(f"env.retries must be >= 0, got {self.retries}.")
        if not 0 <= self.max_fault_share <= 1:
            raise ConfigError(f"env.max_fault_share must be between 0 and 1, got {self.max_fault_share}.")


CUT_TURNS = ("stop", "play")


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """Section `episode`.

    Attributes:
        max_tokens_per_turn: tokens that one reply may have; the episode's budget is data.max_response_length.
        max_tokens: tokens of the whole episode after its prompt; null for data.max_response_length, which is the most.
        cut_turn: what becomes of a reply that reaches the budget: `stop` ends the episode, `play` closes the
            reply with an end-of-turn token that is not trained on, and plays it.
        record_dir: folder of the episode records, or null for none.
    """

    max_tokens_per_turn: int
    cut_turn: str = "stop"
    record_dir: str | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < self.max_tokens_per_turn:
            raise ConfigError(
                f"episode.max_tokens={self.max_tokens} must be at least episode.max_tokens_per_turn="
                f"{self.max_tokens_per_turn}, or null."
            )
        if self.max_tokens_per_turn < 1:
            raise ConfigError(f"episode.max_tokens_per_turn must be >= 1 token, got {self.max_tokens_per_turn}.")
        if self.cut_turn not in CUT_TURNS:
            raise ConfigError(
                f"episode.cut_turn={self.cut_turn!r} is not known. {did_you_mean(self.cut_turn, CUT_TURNS)}"
            )


@dataclass(frozen=True, slots=True)
class AgentSection:
    """Section `agent`: the words around the environment.

    Attributes:
        name: registered name of the agent.
        options: keyword arguments of it.
        context: what the model is shown of the conversation, see `verl_agent.agents.context`.
    """

    name: str = "react"
    options: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"agent.name must be the name of an agent, such as react, got {self.name!r}.")
        for name in ("options", "context"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"agent.{name} must be a mapping such as {{}}, got {getattr(self, name)!r}.")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All sections of this package."""

    env: EnvSettings
    horizon: Horizon
    episode: EpisodeSettings
    agent: AgentSection = field(default_factory=AgentSection)
    credit: Credit = field(default_factory=Credit)


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


def agent_settings(config: Mapping[str, Any]) -> AgentSettings:
    """The sections `env`, `horizon`, `episode`, `agent` and `credit` of a whole, resolved config of one environment.

    Those of a mixture are `verl_agent.config.mixture.agent_parts`.

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
    return AgentSettings(
        section("env", EnvSettings, {**config["env"], "hosts": hosts}),
        section("horizon", Horizon, horizon),
        section("episode", EpisodeSettings, config["episode"]),
        section("agent", AgentSection, config["agent"]),
        section("credit", Credit, config.get("credit") or {}),
    )
