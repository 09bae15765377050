"""The settings of `env.options` that come in groups: read, and refused by name where they cannot be meant."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from verl_agent.errors import ConfigError, did_you_mean

T = TypeVar("T")
MAX_COST = 0.5 - 1e-6
"""What all costs of an episode may take together; less than half by a little, so that no rounding makes it more."""


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What the model sees.

    Attributes:
        width: of the viewport, CSS pixels.
        height: of the viewport, CSS pixels.
        whole_page: show the whole page instead of what is in the viewport.
        show_options: show the options of closed lists too; WebArena does not, so that they have to be guessed.
        browser_numbers: number the elements as the browser does, like WebArena; they differ from one play to the next.
        max_chars: of an observation's page; `scroll` leafs through the rest.
        settle_s: seconds that a page may take to come and to settle.
        screenshots: folder for a picture of each step; None for none.
    """

    width: int = 1280
    height: int = 720
    whole_page: bool = False
    show_options: bool = False
    browser_numbers: bool = False
    max_chars: int = 8000
    settle_s: float = 10.0
    screenshots: str | None = None

    def __post_init__(self) -> None:
        for name, least, most in (("width", 100, 4000), ("height", 100, 4000), ("max_chars", 200, 18_000)):
            _within(f"view.{name}", getattr(self, name), least, most)
        _within("view.settle_s", self.settle_s, 0.5, 300)

    @property
    def size(self) -> tuple[int, int]:
        """Of the viewport."""
        return self.width, self.height


@dataclass(frozen=True, slots=True)
class EconomyOptions:
    """What redundant actions cost; nothing by default, they are only measured.

    All costs of an episode together are at most `MAX_COST`, so that a solved task earns more than a failed one.

    Attributes:
        step_cost: reward that every action costs.
        redundant_cost: reward that a redundant action costs besides.
        end_after: redundant actions in a row after which the episode ends without success; None for never.
    """

    step_cost: float = 0.0
    redundant_cost: float = 0.0
    end_after: int | None = None

    def __post_init__(self) -> None:
        _within("economy.step_cost", self.step_cost, 0, 1)
        _within("economy.redundant_cost", self.redundant_cost, 0, 1)
        if self.end_after is not None:
            _within("economy.end_after", self.end_after, 1, 1000)

    @property
    def success_reward(self) -> float:
        """Return from which a task counts as solved."""
        return 0.5 if self.step_cost or self.redundant_cost else 1.0


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """How given sites are used.

    Attributes:
        allow: further URLs whose hosts pages may use, such as that of a tile server.
        auth: folder of saved logins.
        logged_out: begin logged out, also tasks that are made for somebody who is logged in.
        reset: URL that is posted to before a task on a site begins, by the site's name.
    """

    allow: tuple[str, ...] = ()
    auth: Path | None = None
    logged_out: bool = False
    reset: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.logged_out, bool):
            raise ConfigError(
                f"env.options.access.logged_out={self.logged_out!r} is not allowed. Allowed: true, false."
            )
        if self.logged_out and self.auth is not None:
            raise ConfigError(
                f"env.options.access.logged_out=true does not go with access.auth={str(self.auth)!r}. Set one of them."
            )
        object.__setattr__(self, "allow", (self.allow,) if isinstance(self.allow, str) else tuple(self.allow))
        object.__setattr__(self, "auth", None if self.auth is None else Path(self.auth))


def group(kind: type[T], name: str, given: Mapping[str, Any] | None) -> T:
    """A group of settings.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for key in given or ():
        if key not in known:
            raise ConfigError(f"env.options.{name}.{key} is unknown. {did_you_mean(str(key), known)}")
    return kind(**(given or {}))


def _within(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"env.options.{name}={value!r} is not allowed. Allowed: a number from {least} to {most}.")
