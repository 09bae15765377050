"""Pages of the viewer. Each module has one page, or the files, and keeps its whole state in the URL."""

from verl_agent.viewer.layout import add_run_page
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
    scaling,
    task,
    tokens,
)
from verl_agent.viewer.state import ViewerState

OF_A_RUN = (
    ("", "", run.show),
    ("/episodes", "episodes", episodes.show),
    ("/episode/{number}", "episode", episode.show),
    ("/episode/{number}/tokens", "tokens", tokens.show),
    ("/group", "groups", group.show),
    ("/task", "tasks", task.show),
    ("/horizon", "horizon", horizon.show),
    ("/labels", "labels", labels.show),
    ("/tokens", "tokens", tokens.show_list),
    ("/running", "running", running.show_list),
    ("/running/{number}", "episode in play", running.show),
    ("/control", "control", control.show),
    ("/control/{number}", "attend", attend.show),
    ("/scaling", "scaling", scaling.show),
    ("/failures", "failures", failures.show),
)
"""End of the path, heading and function of each page of a source."""


def add_pages(state: ViewerState) -> None:
    """Register all pages with NiceGUI, and the images that they show."""
    for path, title, show in OF_A_RUN:
        add_run_page(state, path, title, show)
    for page in (home, compare, leaderboard, files):
        page.add(state)
