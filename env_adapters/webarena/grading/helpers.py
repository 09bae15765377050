"""Helper functions that WebArena's tasks call by name, as in `func:reddit_get_post_url('__last_url__')`.

The calls are parsed as literals and never run as code.
"""

import ast
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import Error, Page

from verl_agent.envs.machine.proxies import proxy_of
from verl_agent.errors import ConfigError, EnvError

ADMIN = {"username": "admin", "password": "admin1234"}
"""Published account of the shop in WebArena's own images."""
TIMEOUT_S = 20.0
LAST_URL = "__last_url__"
"""Placeholder in a task for the URL of the agent's last page."""
MEMBER_ROLE = """name => {
  const accounts = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
  const index = accounts.findIndex(one => one.outerText === '@' + name);
  return document.querySelectorAll('td.col-max-role span')[index].outerText;
}"""
Helper = Callable[..., Awaitable[str]]
"""Function of the page, the URL of each site by its placeholder, and the arguments of the call."""


async def reddit_get_post_url(page: Page, site_urls: Mapping[str, str], url: str) -> str:
    """Return the URL of the post that a page belongs to; other URLs are returned unchanged."""
    parts = urlsplit(url)
    segments = parts.path.split("/")
    if len(segments) < 4 or segments[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{segments[2]}/{segments[3]}/"


async def gitlab_get_project_memeber_role(page: Page, site_urls: Mapping[str, str], name: str) -> str:
    """Return the role of a member from the page of a project's members, or "" if the member is not listed."""
    try:
        return str(await page.evaluate(MEMBER_ROLE, name))
    except Error:
        return ""


async def shopping_get_latest_order_url(page: Page, site_urls: Mapping[str, str]) -> str:
    """Return the URL of the shop's latest order."""
    latest = {
        "searchCriteria[sortOrders][0][field]": "created_at",
        "searchCriteria[sortOrders][0][direction]": "DESC",
        "searchCriteria[pageSize]": "1",
    }
    orders = await _query_shop(site_urls, "orders", latest)
    return f"{site_urls['__SHOPPING__']}/sales/order/view/order_id/{int(orders['items'][0]['increment_id'])}/"


async def shopping_get_sku_latest_review_author(page: Page, site_urls: Mapping[str, str], sku: str) -> str:
    """Return the author of the last review of a product, or "" if it has no review."""
    reviews = await _query_shop(site_urls, f"products/{sku}/reviews")
    return str(reviews[-1]["nickname"]) if reviews else ""


async def shopping_get_sku_latest_review_rating(page: Page, site_urls: Mapping[str, str], sku: str) -> str:
    """Return the rating in percent of the last review of a product, or "" if it has no review."""
    reviews = await _query_shop(site_urls, f"products/{sku}/reviews")
    return str(reviews[-1]["ratings"][0]["percent"]) if reviews else ""


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
"""Helpers of the 812 tasks by the name that the tasks use."""


def parse_call(text: str) -> tuple[str, list[str]]:
    """Return name and arguments of a call, for example `func:helper(__page__, 'x')`, without `__page__`.

    Raises:
        ConfigError: the helper is unknown, or an argument is not a string literal.
    """
    match = re.fullmatch(r"func:\s*(\w+)\((.*)\)\s*", text, re.DOTALL)
    if match is None or match[1] not in HELPERS:
        raise ConfigError(f"{text[:100]!r} calls an unknown helper. Allowed: {', '.join(HELPERS)}.")
    literals = re.sub(r"^\s*__page__\s*,?", "", match[2])
    try:
        arguments = list(ast.literal_eval(f"[{literals}]"))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{text[:100]!r} has arguments that are not string literals.") from error
    if not all(isinstance(argument, str) for argument in arguments):
        raise ConfigError(f"{text[:100]!r} has arguments that are not string literals.")
    return match[1], arguments


async def call_helper(text: str, page: Page, site_urls: Mapping[str, str]) -> str:
    """Call a helper and return its result; `LAST_URL` in the arguments is replaced by the URL of the page."""
    name, arguments = parse_call(text)
    return await HELPERS[name](page, site_urls, *[argument.replace(LAST_URL, page.url) for argument in arguments])


async def _query_shop(site_urls: Mapping[str, str], path: str, query: Mapping[str, str] | None = None) -> Any:
    """Query the shop's REST API (Magento) as its administrator."""
    shop = f"{site_urls['__SHOPPING__']}/rest/"
    proxy = proxy_of(shop)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S), raise_for_status=True) as client:
            async with client.post(f"{shop}default/V1/integration/admin/token", json=ADMIN, proxy=proxy) as response:
                bearer = {"Authorization": f"Bearer {await response.json()}"}
            async with client.get(f"{shop}V1/{path}", params=query, headers=bearer, proxy=proxy) as response:
                return await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise EnvError(f"the evaluator's query to the shop ({path}) failed: {type(error).__name__}: {error}") from error
