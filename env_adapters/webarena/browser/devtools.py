"""DevTools session of one page."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from playwright.async_api import CDPSession

T = TypeVar("T")


class DevToolsSession:
    """Session of the DevTools protocol with one page."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session

    def on(self, event: str, handler: Callable[[dict[str, Any]], None]) -> None:
        """Call `handler` with the parameters of each event of this name."""
        self._session.on(event, handler)

    async def send(self, method: str, result_type: type[T], /, **parameters: Any) -> T:
        """Send a command and return its result.

        Args:
            result_type: type of the result; a struct of `msgspec` is filled without the other fields.

        Raises:
            Error: the command failed, or the page has closed.
        """
        # The public `send` searches the whole response, some ten thousand values, for Playwright's own objects. The
        # protocol has none, and the search takes half of the time of reading a page.
        result = await self._session._impl_obj.send(method=method, params=parameters, timeout=0)
        return msgspec.convert(result, result_type)
