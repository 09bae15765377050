"""URL and loading state of a page, from the events of its DevTools session."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from env_adapters.webarena.browser.devtools import DevToolsSession

WINDOW_OPEN_S = 1.0
"""Seconds to wait for a window that a page opens."""
LOADING_EVENTS = ("Page.frameRequestedNavigation", "Page.frameStartedNavigating", "Page.frameStartedLoading")
LOADED_EVENTS = ("Page.frameStoppedLoading", "Page.frameDetached")


class Navigation:
    """URL and loading state of a page.

    Attributes:
        requested_url: URL that the main frame has requested and that has not come yet, else "".
        uncommitted: True if a frame has started to load since the last document came.
        window_deadline: monotonic time in seconds until which a window that the page opens is awaited.
    """

    def __init__(self, on_document: Callable[[], None]) -> None:
        self.url = self.requested_url = ""
        self.uncommitted = False
        self.window_deadline = 0.0
        self._on_document = on_document
        self._main_frame = ""
        self._loading_frames: set[str] = set()

    @property
    def loading(self) -> bool:
        """True while a frame loads or a window that the page has opened is awaited."""
        return bool(self._loading_frames) or time.monotonic() < self.window_deadline

    def subscribe(self, session: DevToolsSession, main_frame: str) -> None:
        """Follow the events of a session, which start with its command `Page.enable`."""
        self._main_frame, self.url = main_frame, ""
        for name in LOADING_EVENTS:
            session.on(name, self._on_loading)
        for name in LOADED_EVENTS:
            session.on(name, self._on_loaded)
        session.on("Page.frameNavigated", self._on_navigated)
        session.on("Page.navigatedWithinDocument", self._on_navigated_within)
        session.on("Page.windowOpen", self._on_window_open)

    def set_first_url(self, frame: Mapping[str, str]) -> None:
        """Set the URL from the main frame as it was after `subscribe`; later events have precedence."""
        self.url = self.url or _frame_url(frame)

    def _on_window_open(self, event: dict[str, Any]) -> None:
        """Wait for the window that the page opens; a blocked window never arrives."""
        self.window_deadline = time.monotonic() + WINDOW_OPEN_S

    def _on_loading(self, event: dict[str, Any]) -> None:
        self._loading_frames.add(event["frameId"])
        self.uncommitted = True
        if event["frameId"] == self._main_frame and "url" in event:
            self.requested_url = event["url"]

    def _on_loaded(self, event: dict[str, Any]) -> None:
        self._loading_frames.discard(event["frameId"])
        if event["frameId"] == self._main_frame:
            self.requested_url = ""

    def _on_navigated(self, event: dict[str, Any]) -> None:
        self.uncommitted = False
        frame = event["frame"]
        if frame["id"] == self._main_frame:
            self.url = _frame_url(frame)
            self.requested_url = ""
            self._on_document()

    def _on_navigated_within(self, event: dict[str, Any]) -> None:
        self.uncommitted = False
        if event["frameId"] == self._main_frame:
            self.url = event["url"]


def _frame_url(frame: Mapping[str, str]) -> str:
    return frame["url"] + frame.get("urlFragment", "")
