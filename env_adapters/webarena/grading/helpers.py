"""What WebArena's tasks ask by name, as in `func:reddit_get_post_url('__last_url__')`: read, never run as code."""

import ast
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import Error, Page

from verl_agent.errors import ConfigError, EnvError

ADMIN = {"username": "admin", "password": "admin1234"}
"""The shop's account of WebArena's own images, which they publish."""
TIMEOUT_S = 20.0
LAST_URL = "__last_url__"
"""How a task writes the URL of the page that the agent left open."""
MEMBER_ROLE = """name => {
  const accounts = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
  const index = accounts.findIndex(one => one.outerText === '@' + name);
  return document.querySelectorAll('td.col-max-role span')[index].outerText;
}"""
Helper = Callable[..., Awaitable[str]]
"""Takes the page, the URL of each site by its placeholder, and what stands in the parentheses."""


async def reddit_get_post_url(page: Page, base: Mapping[str, str], url: str) -> str:
    """The URL of the post that a page below it belongs to; other URLs as they are."""
    parts = urlsplit(url)
    steps = parts.path.split("/")
    if len(steps) < 4 or steps[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{steps[2]}/{steps[3]}/"


async def gitlab_get_project_memeber_role(page: Page, base: Mapping[str, str], name: str) -> str:
    """The role of a member on the page of a project's members, "" if there is no such member."""
    try:
        return str(await page.evaluate(MEMBER_ROLE, name))
    except Error:
        return ""


async def shopping_get_latest_order_url(page: Page, base: Mapping[str, str]) -> str:
    """The page of the shop's latest order."""
    newest = {
        "searchCriteria[sortOrders][0][field]": "created_at",
        "searchCriteria[sortOrders][0][direction]": "DESC",
        "searchCriteria[pageSize]": "1",
    }
    found = await _shop(base, "orders", newest)
    return f"{base['__SHOPPING__']}/sales/order/view/order_id/{int(found['items'][0]['increment_id'])}/"


async def shopping_get_sku_latest_review_author(page: Page, base: Mapping[str, str], sku: str) -> str:
    """Who wrote the last review of a product, "" if nobody has."""
    found = await _shop(base, f"products/{sku}/reviews")
    return str(found[-1]["nickname"]) if found else ""


async def shopping_get_sku_latest_review_rating(page: Page, base: Mapping[str, str], sku: str) -> str:
    """The rating, in percent, of the last review of a product, "" if there is none."""
    found = await _shop(base, f"products/{sku}/reviews")
    return str(found[-1]["ratings"][0]["percent"]) if found else ""


HELPERS: Mapping[str, Helper] = {
    helper.__name__: helper
    for helper in (
        reddit_get_post_url,
        gitlab_get_project_memeber_role,
        shopping_get_latest_order_url,
        shopping_get_sku_latest_review_author,
        shopping_get_sku_latest_review_rating,
    )
}
"""Those that the 812 tasks use, under the names that they have there."""


def read_call(text: str) -> tuple[str, list[str]]:
    """Name and arguments of a call such as `func:helper(__page__, 'x')`; `__page__` is left out.

    Raises:
        ConfigError: it is no call of a known helper with texts.
    """
    found = re.fullmatch(r"func:\s*(\w+)\((.*)\)\s*", text, re.DOTALL)
    if found is None or found[1] not in HELPERS:
        raise ConfigError(f"{text[:100]!r} calls no known helper. Known: {', '.join(HELPERS)}.")
    inside = re.sub(r"^\s*__page__\s*,?", "", found[2])
    try:
        arguments = list(ast.literal_eval(f"[{inside}]"))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{text[:100]!r} has arguments that are no texts.") from error
    if not all(isinstance(one, str) for one in arguments):
        raise ConfigError(f"{text[:100]!r} has arguments that are no texts.")
    return found[1], arguments


async def call(text: str, page: Page, base: Mapping[str, str]) -> str:
    """What a helper answers; `LAST_URL` is the URL of the page."""
    name, arguments = read_call(text)
    return await HELPERS[name](page, base, *[one.replace(LAST_URL, page.url) for one in arguments])


async def _shop(base: Mapping[str, str], path: str, query: Mapping[str, str] | None = None) -> Any:
    """Ask the shop's own interface (Magento's REST) as its administrator."""
    shop = f"{base['__SHOPPING__']}/rest/"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S), raise_for_status=True) as client:
            async with client.post(f"{shop}default/V1/integration/admin/token", json=ADMIN) as answer:
                bearer = {"Authorization": f"Bearer {await answer.json()}"}
            async with client.get(f"{shop}V1/{path}", params=query, headers=bearer) as answer:
                return await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise EnvError(
            f"the shop did not say what the evaluator asked ({path}): {type(error).__name__}: {error}"
        ) from error
