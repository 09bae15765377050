"""Execution of actions on an element or on the history of a tab."""

from playwright.async_api import Error

from env_adapters.webarena.browser.accessibility_tree import Element
from env_adapters.webarena.browser.grammar import BrowserAction, PageActionError
from env_adapters.webarena.browser.network_proxy import NetworkProxy
from env_adapters.webarena.browser.tab import ElementGoneError, Tab
from verl_agent.errors import EnvError

MAX_TYPED_KEYS = 200
"""Texts of up to this many characters are typed key by key; longer ones are inserted at once."""


async def click_or_hover(tab: Tab, element: Element, action: BrowserAction) -> None:
    """Click an element, or move the mouse over it.

    Raises:
        PageActionError: the element has left the page, or is disabled.
    """
    try:
        if action.kind == "click" and element.role == "option":
            if (outcome := await tab.select_option(element.backend_id, None)) == "chosen":
                return
            if outcome == "disabled":
                raise PageActionError(f"[{action.element_id}] is disabled.")
        x, y = await tab.click_point(element.backend_id)
    except ElementGoneError:
        raise PageActionError(f"[{action.element_id}] cannot be reached on this page any more.") from None
    await tab.move_mouse(x, y, click=action.kind == "click")


async def type_or_select(tab: Tab, element: Element, action: BrowserAction) -> None:
    """Click a field and type a text, or select the option of a list.

    Raises:
        PageActionError: the element has left the page, or the list has no option of that name.
    """
    try:
        if element.role in ("combobox", "listbox"):
            outcome = await tab.select_option(element.backend_id, action.text)
            if outcome == "chosen":
                return
            if outcome != "none":
                raise PageActionError(f"[{action.element_id}] has no option {action.text[:80]!r} to choose.")
        x, y = await tab.click_point(element.backend_id)
    except ElementGoneError:
        raise PageActionError(f"[{action.element_id}] cannot be reached on this page any more.") from None
    await tab.move_mouse(x, y, click=True)
    await tab.move_cursor_to_end()
    if len(action.text) <= MAX_TYPED_KEYS:
        await tab.page.keyboard.type(action.text)
    else:
        await tab.page.keyboard.insert_text(action.text)
    if action.press_enter:
        await tab.page.keyboard.press("Enter")


async def open_start_page(tab: Tab, url: str, proxy: NetworkProxy, timeout_s: float) -> None:
    """Open a start page of a task.

    Raises:
        EnvError: the URL is outside the task's sites, does not respond within `timeout_s`, or returns an HTTP error.
    """
    if not proxy.allows(url):
        raise EnvError(f"the start page {url} is outside the sites of its task: {', '.join(proxy.routes)}.")
    try:
        response = await tab.page.goto(url, wait_until="commit", timeout=timeout_s * 1000)
    except Error as error:
        raise EnvError(f"the start page {url} did not load: {error_reason(error)}") from error
    if response is not None and response.status >= 400:
        reason = f"{response.status}: {proxy.traffic.site_error}" if proxy.traffic.site_error else response.status
        raise EnvError(f"the start page {url} answers {reason}. Check that the site is up, and its URL.")


async def navigate(tab: Tab, url: str, proxy: NetworkProxy, timeout_s: float) -> str:
    """Open a URL; return why the page did not open, or "" if it did.

    Raises:
        PageActionError: the URL is outside the task's sites.
        EnvError: the page did not respond within `timeout_s`.
    """
    full_url = url if "://" in url else f"http://{url}"
    if not proxy.allows(full_url):
        sites = ", ".join(name.removesuffix(":80") for name in proxy.routes)
        raise PageActionError(f"{url[:200]!r} is outside the sites of this task. Allowed: {sites}.")
    try:
        await tab.page.goto(full_url, wait_until="commit", timeout=timeout_s * 1000)
    except Error as error:
        return _navigation_note(error, full_url, timeout_s)
    return ""


async def navigate_history(tab: Tab, kind: str, timeout_s: float) -> str:
    """Go back or forward in the history of the tab; return why the page did not open, or "" if it did.

    Raises:
        PageActionError: the history has no page in that direction.
        EnvError: the page did not respond within `timeout_s`.
    """
    has_back, has_forward = await tab.history()
    if not (has_back if kind == "go_back" else has_forward):
        raise PageActionError(f"There is no page to {kind.replace('_', ' ')} to.")
    go = tab.page.go_back if kind == "go_back" else tab.page.go_forward
    try:
        await go(wait_until="commit", timeout=timeout_s * 1000)
    except Error as error:
        return _navigation_note(error, "the page", timeout_s)
    return ""


def error_reason(error: Error) -> str:
    """Return the first line of a Playwright error, without the log of the call."""
    return error.message.strip().partition("\n")[0].removeprefix("Page.goto: ").rstrip(".")


def _navigation_note(error: Error, page: str, timeout_s: float) -> str:
    """Return the note for the model about a page that did not open.

    Raises:
        EnvError: the site did not respond in time.
        Error: the page or the browser has closed.
    """
    reason = error_reason(error)
    if "Timeout" in reason:
        raise EnvError(f"{page[:200]} did not come within {timeout_s:g} s.") from error
    if "closed" in reason:
        raise error
    return "" if "ERR_ABORTED" in reason or "interrupted" in reason else f"The page did not open: {reason}."
