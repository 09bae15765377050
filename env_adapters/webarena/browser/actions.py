"""Carry out an action on the element or the history of a tab. Knows neither the other tabs nor what is seen."""

from playwright.async_api import Error

from env_adapters.webarena.browser.accessibility_tree import Element
from env_adapters.webarena.browser.grammar import Action, ActionError
from env_adapters.webarena.browser.network_proxy import NetworkProxy
from env_adapters.webarena.browser.tab import GoneError, Tab
from verl_agent.errors import EnvError

SLOW_TYPING = 200
"""Characters up to which each key is pressed; longer texts are inserted at once."""


async def point(tab: Tab, element: Element, action: Action) -> None:
    """Click an element, or move the mouse over it.

    Raises:
        ActionError: it is not there any more, or disabled.
    """
    try:
        if action.kind == "click" and element.role == "option":
            if (came := await tab.choose(element.backend_id, None)) == "chosen":
                return
            if came == "disabled":
                raise ActionError(f"[{action.element}] is disabled.")
        x, y = await tab.place(element.backend_id)
    except GoneError:
        raise ActionError(f"[{action.element}] cannot be reached on this page any more.") from None
    await (tab.page.mouse.click(x, y) if action.kind == "click" else tab.page.mouse.move(x, y))


async def enter(tab: Tab, element: Element, action: Action) -> None:
    """Click a field and type, or choose in a list.

    Raises:
        ActionError: it is not there any more, or the list has no such option.
    """
    try:
        if element.role in ("combobox", "listbox"):
            came = await tab.choose(element.backend_id, action.text)
            if came == "chosen":
                return
            if came != "none":
                raise ActionError(f"[{action.element}] has no option {action.text[:80]!r} to choose.")
        x, y = await tab.place(element.backend_id)
    except GoneError:
        raise ActionError(f"[{action.element}] cannot be reached on this page any more.") from None
    await tab.page.mouse.click(x, y)
    await tab.to_end()
    if len(action.text) <= SLOW_TYPING:
        await tab.page.keyboard.type(action.text)
    else:
        await tab.page.keyboard.insert_text(action.text)
    if action.enter:
        await tab.page.keyboard.press("Enter")


async def begin(tab: Tab, url: str, fence: NetworkProxy, bound_s: float) -> None:
    """Open a start page.

    Raises:
        EnvError: it does not come within `bound_s`, or is an error.
    """
    if not fence.allows(url):
        raise EnvError(f"the start page {url} is outside the sites of its task: {', '.join(fence.routes)}.")
    try:
        answer = await tab.page.goto(url, wait_until="commit", timeout=bound_s * 1000)
    except Error as error:
        raise EnvError(f"the start page {url} does not come: {reason_of(error)}") from error
    if answer is not None and answer.status >= 400:
        down = f": {fence.traffic.down}" if fence.traffic.down else ""
        raise EnvError(f"the start page {url} answers {answer.status}{down}. Check that the site is up, and its URL.")


async def go(tab: Tab, url: str, fence: NetworkProxy, bound_s: float) -> str:
    """Go to a URL; returns why it did not open, "" if it did.

    Raises:
        ActionError: it is outside the fence.
        EnvError: it did not come within `bound_s`.
    """
    full = url if "://" in url else f"http://{url}"
    if not fence.allows(full):
        sites = ", ".join(name.removesuffix(":80") for name in fence.routes)
        raise ActionError(f"{url[:200]!r} is outside the sites of this task. Allowed: {sites}.")
    try:
        await tab.page.goto(full, wait_until="commit", timeout=bound_s * 1000)
    except Error as error:
        return _explained(error, full, bound_s)
    return ""


async def travel(tab: Tab, kind: str, bound_s: float) -> str:
    """Go back or forward in the history of the tab; returns why the page did not open, "" if it did.

    Raises:
        ActionError: there is no page to go to.
        EnvError: it did not come within `bound_s`.
    """
    back, forward = await tab.history()
    if not (back if kind == "go_back" else forward):
        raise ActionError(f"There is no page to {kind.replace('_', ' ')} to.")
    move = tab.page.go_back if kind == "go_back" else tab.page.go_forward
    try:
        await move(wait_until="commit", timeout=bound_s * 1000)
    except Error as error:
        return _explained(error, "the page", bound_s)
    return ""


def reason_of(error: Error) -> str:
    """What went wrong, without Playwright's log of the call."""
    return error.message.strip().partition("\n")[0].removeprefix("Page.goto: ").rstrip(".")


def _explained(error: Error, what: str, bound_s: float) -> str:
    """A page that did not come: what the model is told, unless it is the site or the browser that failed."""
    reason = reason_of(error)
    if "Timeout" in reason:
        raise EnvError(f"{what[:200]} did not come within {bound_s:g} s.") from error
    if "closed" in reason:
        raise error
    return "" if "ERR_ABORTED" in reason or "interrupted" in reason else f"The page did not open: {reason}."
