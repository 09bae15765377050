"""Snapshot of a page after an action, and the settings with which pages are shown."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from env_adapters.webarena.browser.accessibility_tree import PageText


@dataclass(frozen=True, slots=True)
class PageView:
    """Settings with which pages are shown.

    Attributes:
        size: width and height of the viewport in CSS pixels.
        whole_page: show the whole page instead of the viewport.
        settle_s: seconds that a page may take to settle after an action.
        show_options: show the options of closed lists.
        browser_numbers: use the browser's node numbers instead of numbers from 1 on each page.
        paint_scale: size at which pages are painted, relative to the viewport; it changes no layout and no text.
            Screenshots need 1.
    """

    size: tuple[int, int] = (1280, 720)
    whole_page: bool = False
    settle_s: float = 10.0
    show_options: bool = False
    browser_numbers: bool = False
    paint_scale: float = 0.1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Open tabs and text of the current page after an action.

    Attributes:
        tabs: line with the titles of the open tabs.
        notes: sentences about other events during the action.
        taken_at: monotonic time in seconds at which the page was read.
    """

    tabs: str
    page: PageText
    url: str
    notes: Sequence[str] = ()
    taken_at: float = field(default_factory=time.monotonic, compare=False)

    @property
    def text(self) -> str:
        """Tabs and page in WebArena's format."""
        return self.tabs + "\n\n" + "\n".join(self.page.lines)
