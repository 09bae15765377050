"""The open tabs of a session, and which of them is worked in."""

from collections.abc import Iterator

from playwright.async_api import Page

from env_adapters.webarena.browser.grammar import ActionError
from env_adapters.webarena.browser.tab import Tab

MAX_TABS = 8


class Tabs:
    """The open tabs, in the order in which they opened.

    Attributes:
        current: place of the one that is worked in.
    """

    def __init__(self) -> None:
        self.current = 0
        self._open: list[Tab] = []

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Tab]:
        return iter(list(self._open))

    @property
    def here(self) -> Tab:
        """The one that is worked in; there must be one."""
        return self._open[self.current]

    def add(self, page: Page) -> Tab:
        """A page has opened."""
        self._open.append(Tab(page))
        return self._open[-1]

    def of(self, page: Page) -> Tab:
        """The tab of a page."""
        return next(tab for tab in self._open if tab.page is page)

    def work_in(self, tab: Tab) -> None:
        """Work in one of the tabs from now on."""
        self.current = self._open.index(tab)

    def focus(self, number: int) -> None:
        """Work in the tab of this number, as the model wrote it.

        Raises:
            ActionError: there is none.
        """
        if number >= len(self._open):
            raise ActionError(f"There is no tab {number}. Tabs: 0 to {len(self._open) - 1}.")
        self.current = number

    def forget(self, tab: Tab) -> None:
        """A tab has closed."""
        if tab in self._open:
            place = self._open.index(tab)
            self._open.remove(tab)
            if place <= self.current:
                self.current = max(0, self.current - 1)
