"""Reactions of a session to windows, dialogs, downloads and crashes of its pages."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.async_api import BrowserContext, Dialog, Download, Page

from env_adapters.webarena.browser.background import ignore_errors, run_in_background
from env_adapters.webarena.browser.tabs import MAX_TABS, Tabs

MAX_POPUPS = 20
"""Most windows and dialogs that pages may open during one action; more end the episode."""
MAX_NOTES = 5


class PageEvents:
    """Reactions of a session to the events of its pages.

    Attributes:
        notes: sentences about the events since the last action, for the next observation.
        popups: number of windows and dialogs since the last action.
        error: reason why the episode cannot go on; "" if it can.
    """

    def __init__(self, tabs: Tabs) -> None:
        self.notes: list[str] = []
        self.popups = 0
        self.error = ""
        self._tabs = tabs
        self._context: BrowserContext | None = None
        self._ignored = 0

    def subscribe(self, context: BrowserContext) -> None:
        """React to the events of all pages of a context."""
        self._context = context
        context.on("page", self._on_page)

    def start_action(self) -> None:
        """Forget the notes and the number of windows of the previous action."""
        self.notes, self.popups = [], 0

    def note(self, sentence: str) -> None:
        """Add a sentence to the next observation, but none twice and at most `MAX_NOTES`."""
        if sentence and sentence not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(sentence)

    @contextmanager
    def ignoring_pages(self) -> Iterator[None]:
        """Add no tab for the pages that open inside the `with` block."""
        self._ignored += 1
        try:
            yield
        finally:
            self._ignored -= 1

    def _on_page(self, page: Page) -> None:
        """Add the tab that an action or a page has opened."""
        if self._ignored:
            return
        self.popups += 1
        for other in self._tabs:
            other.stop_waiting_for_window()
        if len(self._tabs) >= MAX_TABS or self.popups > MAX_POPUPS:
            self.note("A page tried to open more tabs than there may be.")
            if self.popups > MAX_POPUPS:
                self._fail(f"a page opened more than {MAX_POPUPS} windows at once.")
            run_in_background(page.close())
            return
        tab = self._tabs.add(page)
        page.on("dialog", self._on_dialog)
        page.on("download", self._on_download)
        page.on("crash", lambda _: self._fail(f"the page {page.url[:200]} crashed."))
        page.on("close", lambda _: self._tabs.remove(tab))

    async def _on_dialog(self, dialog: Dialog) -> None:
        """Close a dialog at once, because the page waits for it; Playwright does the same for WebArena."""
        self.popups += 1
        if self.popups > MAX_POPUPS:
            self._fail(f"a page showed more than {MAX_POPUPS} dialogs at once.")
        leaving = dialog.type == "beforeunload"
        if not leaving:
            self.note(f"A box ({dialog.type}) said {dialog.message[:200]!r}; it was closed.")
        await ignore_errors(dialog.accept() if leaving or dialog.type == "alert" else dialog.dismiss())

    def _on_download(self, download: Download) -> None:
        self.note(f"The download of {download.suggested_filename[:100]!r} was refused: downloads are off.")

    def _fail(self, reason: str) -> None:
        """End the episode with an error and close the context."""
        if not self.error and self._context is not None:
            self.error = reason
            run_in_background(self._context.close())
