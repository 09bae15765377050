"""First page: the opened runs."""

from functools import partial

from nicegui import ui

from verl_agent.errors import counted
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.layout import frame, link_to, run_path, url_of
from verl_agent.viewer.queries import count_episodes
from verl_agent.viewer.sources import describe_result
from verl_agent.viewer.state import ViewerState


def add(state: ViewerState) -> None:
    """Register the page `/`."""

    @url_of("/")
    async def home() -> None:
        with frame(state):
            for opened in state.opened.values():
                with ui.card().classes("w-full"):
                    ui.link(opened.key, link_to(run_path(opened))).classes("text-lg")
                    ui.label(str(opened.source.path)).classes("text-sm text-gray-600")
                    count = await opened.fetch("count", partial(count_episodes, opened.index, Filter()))
                    ui.label(counted(count, "episode"))
                    if result := describe_result(opened.source):
                        ui.label(result)
