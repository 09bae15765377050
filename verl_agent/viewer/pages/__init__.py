"""Pages of the viewer. Each module has one page, or the files, and keeps its whole state in the URL."""

from verl_agent.viewer.pages import (
    attend,
    compare,
    control,
    episode,
    episodes,
    failures,
    files,
    group,
    home,
    horizon,
    labels,
    leaderboard,
    run,
    running,
    task,
    tokens,
)
from verl_agent.viewer.state import ViewerState


def add_pages(state: ViewerState) -> None:
    """Register all pages with NiceGUI, and the images that they show."""
    of_a_run = (run, episodes, episode, group, task, horizon, labels, tokens, failures, control, attend, running)
    for page in (home, *of_a_run, compare, leaderboard, files):
        page.add(state)
