"""Groups of options in `env.options`: view, economy and access."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from env_adapters.webarena.browser.snapshot import PageView
from verl_agent.errors import ConfigError
from verl_agent.sections import STRICT

MAX_COST = 0.5 - 1e-6
"""Largest sum of the costs of an episode; slightly less than half of the reward, so that rounding cannot exceed it."""
Pixels = Annotated[int, Field(ge=100, le=4000)]
Cost = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, config=STRICT)
class ViewOptions:
    """Options of the observations."""

    width: Pixels = 1280
    """Width of the viewport in CSS pixels."""
    height: Pixels = 720
    """Height of the viewport in CSS pixels."""
    whole_page: bool = False
    """Show the whole page instead of the viewport."""
    show_options: bool = False
    """Show the options of closed lists. WebArena does not show them, so the model has to guess them."""
    browser_numbers: bool = False
    """Use the browser's node numbers as WebArena does; they differ each time an episode is played."""
    max_chars: Annotated[int, Field(ge=200, le=18_000)] = 8000
    """Characters of the page in one observation; `scroll` moves through longer texts."""
    settle_s: Annotated[float, Field(ge=0.5, le=300)] = 10.0
    """Seconds that a page may take to load and to settle."""
    screenshots: str | None = None
    """Folder for a screenshot of each step; None for no screenshots."""

    @property
    def page_view(self) -> PageView:
        """Settings with which the browser session shows pages."""
        size = (self.width, self.height)
        view = PageView(size, self.whole_page, self.settle_s, self.show_options, self.browser_numbers)
        return view if self.screenshots is None else replace(view, paint_scale=1.0)


@dataclass(frozen=True, slots=True, config=STRICT)
class EconomyOptions:
    """Costs of actions; by default redundant actions are measured and cost nothing.

    The costs of an episode are at most `MAX_COST` in total, so a solved task earns more than a failed one.
    """

    step_cost: Cost = 0.0
    """Reward that every action costs."""
    redundant_cost: Cost = 0.0
    """Additional reward that a redundant action costs."""
    end_after: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Number of consecutive redundant actions that end the episode without success; None for no limit."""

    @property
    def success_reward(self) -> float:
        """Smallest return of a solved task."""
        return 0.5 if self.step_cost or self.redundant_cost else 1.0


@dataclass(frozen=True, slots=True, config=STRICT)
class AccessOptions:
    """Options for the use of sites that the user runs."""

    allow: str | Sequence[str] = ()
    """Further URL, or list of URLs, whose hosts pages may use, for example of a tile server."""
    auth: str | None = None
    """Folder of saved logins."""
    logged_out: bool = False
    """Start logged out, even in tasks that expect a login."""
    reset: Mapping[str, str] | None = None
    """URL by site; a POST request to it resets the site before a task."""
    exact_urls: bool = False
    """Compare URLs exactly in `url_match`, so that no URL solves several tasks. WebArena does not."""
    brief_answers: bool = False
    """Reject answers that are much longer than their reference, so that no long list solves many tasks. WebArena does
    not."""
    number_values: bool = False
    """Read numbers of `must_include` as numbers: `$0.00` is 0, and 160 is not 16. WebArena compares text."""

    @property
    def allowed_urls(self) -> tuple[str, ...]:
        """URLs of `allow`."""
        return (self.allow,) if isinstance(self.allow, str) else tuple(self.allow)

    def __post_init__(self) -> None:
        if self.logged_out and self.auth is not None:
            raise ConfigError(
                f"env.options.access.logged_out=true is not allowed with access.auth={self.auth!r}. Set one of them."
            )
