"""The sections that this package adds to verl's config, typed and checked before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.rollout.horizon import Horizon

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """Section `env`.

    Attributes:
        name: registered name of the environment.
        train_tasks: tasks to train on: a split of the environment, or a file with one task id a line.
        eval_tasks: tasks to validate and evaluate on, likewise; they must not overlap.
        options: keyword arguments of its adapter.
        timeout_s: seconds that one reset or step may take.
        retries: further tries of an episode whose environment failed.
        max_fault_share: share of a batch's episodes, 0 to 1, that may still fail before the run stops.
    """

    name: str
    train_tasks: str = "train"
    eval_tasks: str = "test"
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0
    retries: int = 2
    max_fault_share: float = 0.5

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
        cut_turn: what becomes of a reply that reaches the budget: `stop` ends the episode, `play` closes the
            reply with an end-of-turn token that is not trained on, and plays it.
        record_dir: folder of the episode records, or null for none.
    """

    max_tokens_per_turn: int
    cut_turn: str = "stop"
    record_dir: str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens_per_turn < 1:
            raise ConfigError(f"episode.max_tokens_per_turn must be >= 1 token, got {self.max_tokens_per_turn}.")
        if self.cut_turn not in CUT_TURNS:
            raise ConfigError(f"episode.cut_turn={self.cut_turn!r} is not known. {did_you_mean(self.cut_turn, CUT_TURNS)}")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All sections of this package."""

    env: EnvSettings
    horizon: Horizon
    episode: EpisodeSettings


def section(name: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """Build one typed section from a mapping.

    Raises:
        ConfigError: a key that does not exist, one that is missing, or a value that cannot be meant.
    """
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]  # kind is a dataclass
    for key in values:
        if key not in known:
            raise ConfigError(f"{name}.{key} is not a setting. {did_you_mean(str(key), known)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"section {name!r} is not complete or has a value of a wrong type: {error}") from error


def agent_settings(config: Mapping[str, Any]) -> AgentSettings:
    """The sections `env`, `horizon` and `episode` of a whole, resolved config.

    Raises:
        ConfigError: see `section`.
    """
    for name in ("env", "horizon", "episode"):
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(f"the config has no section {name!r}. Start from a recipe in recipes/.")
    return AgentSettings(
        section("env", EnvSettings, config["env"]),
        section("horizon", Horizon, config["horizon"]),
        section("episode", EpisodeSettings, config["episode"]),
    )
