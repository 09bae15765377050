"""Open tabs of a session and the tab that actions apply to."""

from collections.abc import Iterator

from playwright.async_api import Page

from env_adapters.webarena.browser.grammar import PageActionError
from env_adapters.webarena.browser.tab import Tab

MAX_TABS = 8


class Tabs:
    """Open tabs, in the order in which they were opened.

    Attributes:
        current_index: index of the current tab, which actions apply to.
    """

    def __init__(self, paint_scale: float = 1.0) -> None:
        self.current_index = 0
        self._paint_scale = paint_scale
        self._tabs: list[Tab] = []

    def __len__(self) -> int:
        return len(self._tabs)

    def __iter__(self) -> Iterator[Tab]:
        return iter(list(self._tabs))

    @property
    def current(self) -> Tab:
        """Current tab; at least one tab must be open."""
        return self._tabs[self.current_index]

    def add(self, page: Page) -> Tab:
        """Add and return the tab of a page that has opened."""
        self._tabs.append(Tab(page, self._paint_scale))
        return self._tabs[-1]

    def of(self, page: Page) -> Tab:
        return next(tab for tab in self._tabs if tab.page is page)

    def switch_to(self, tab: Tab) -> None:
        """Make one of the tabs the current one."""
        self.current_index = self._tabs.index(tab)

    def focus(self, index: int) -> None:
        """Make the tab at this index the current one.

        Raises:
            PageActionError: no tab has this index.
        """
        if index >= len(self._tabs):
            raise PageActionError(f"There is no tab {index}. Tabs: 0 to {len(self._tabs) - 1}.")
        self.current_index = index

    def remove(self, tab: Tab) -> None:
        if tab in self._tabs:
            index = self._tabs.index(tab)
            self._tabs.remove(tab)
            if index <= self.current_index:
                self.current_index = max(0, self.current_index - 1)
