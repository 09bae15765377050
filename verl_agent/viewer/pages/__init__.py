"""Pages of the viewer. Each module has one page and keeps its whole state in the URL."""

from verl_agent.viewer import media
from verl_agent.viewer.pages import (
    attend,
    compare,
    control,
    episode,
    episodes,
    failures,
    group,
    home,
    horizon,
    labels,
    leaderboard,
    run,
    task,
    tokens,
)
from verl_agent.viewer.state import ViewerState

PAGES = (
    home,
    run,
    episodes,
    episode,
    group,
    task,
    horizon,
    labels,
    tokens,
    compare,
    leaderboard,
    failures,
    control,
    attend,
)
"""Modules with a function `add(state)`."""


def add_pages(state: ViewerState) -> None:
    """Register all pages with NiceGUI, and the images that they show."""
    media.add(state)
    for page in PAGES:
        page.add(state)
