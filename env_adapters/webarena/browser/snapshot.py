"""How pages are shown, and what is seen of one."""

from collections.abc import Sequence
from dataclasses import dataclass

from env_adapters.webarena.browser.accessibility_tree import PageText


@dataclass(frozen=True, slots=True)
class View:
    """How pages are shown.

    Attributes:
        size: width and height of the viewport, CSS pixels.
        whole: show the whole page, not only what is in the viewport.
        settle_s: seconds that a page may take to settle after an action.
        show_options: show the options of closed lists too.
        browser_numbers: number the elements as the browser does, and not from 1 on each page.
    """

    size: tuple[int, int] = (1280, 720)
    whole: bool = False
    settle_s: float = 10.0
    show_options: bool = False
    browser_numbers: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is seen after an action.

    Attributes:
        tabs: the titles of the open tabs.
        page: the text of the current one.
        url: its address.
        notes: what else happened, in sentences.
    """

    tabs: str
    page: PageText
    url: str
    notes: Sequence[str] = ()

    @property
    def text(self) -> str:
        """Titles and text, as WebArena writes them."""
        return self.tabs + "\n\n" + "\n".join(self.page.lines)
