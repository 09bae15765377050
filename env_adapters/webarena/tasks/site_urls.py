"""The sites of one episode: what their URLs are, where they listen, who is logged in, and how they are given back."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import StorageState

from env_adapters.webarena.browser.network_proxy import Address, authority
from env_adapters.webarena.tasks.items import SITES
from verl_agent.errors import ConfigError, EnvError, did_you_mean
from verl_agent.types import TaskItem

TABS = " |AND| "
"""Between the URLs of the tabs that a task starts with."""
RESET_S = 120.0


def placeholder(site: str) -> str:
    """How tasks write the URL of a site."""
    return f"__{site.upper()}__"


def _nothing() -> None:
    """There is nothing to give back."""


@dataclass(frozen=True, slots=True)
class SiteEnvironment:
    """The sites of one episode.

    Attributes:
        urls: URL of each site, without a slash at its end, by its name.
        routes: where they listen, see `NetworkProxy`.
        state: cookies and local storage to begin with.
        release: gives the world back; may take a moment, and runs in a thread.
        login: file that `state` was read from, "" if it was made.
    """

    urls: Mapping[str, str]
    routes: Mapping[str, Address]
    state: StorageState | None = None
    release: Callable[[], None] = field(default=_nothing)
    login: str = ""

    @property
    def base(self) -> Mapping[str, str]:
        """URL of each site by its placeholder."""
        return {placeholder(site): url for site, url in self.urls.items()}

    def fill(self, value: Any) -> Any:
        """A value of a task with the URLs filled in, in all texts within it."""
        if isinstance(value, str):
            for mark in sorted(self.base, key=len, reverse=True):
                value = value.replace(mark, self.base[mark])
            return value
        if isinstance(value, Mapping):
            return {key: self.fill(part) for key, part in value.items()}
        return [self.fill(part) for part in value] if isinstance(value, list | tuple) else value

    def start_urls(self, item: TaskItem) -> list[str]:
        """What the tabs of the task show at first."""
        return str(self.fill(item.data["start_url"])).split(TABS)

    def others(self, item: TaskItem) -> list[str]:
        """A line about the sites of a task on which no tab begins; none if there are no such sites."""
        begun = self.start_urls(item)
        urls = {site: self.urls[site] for site in item.data["sites"] if site in self.urls}
        named = [f"{site}: {url}" for site, url in urls.items() if not any(one.startswith(url) for one in begun)]
        return [f"Other sites of this task: {', '.join(named)}"] if named else []


@dataclass(frozen=True, slots=True)
class GivenSites:
    """Sites that run somewhere, named by the user; every episode sees the same ones.

    Attributes:
        sites: URL of each by its name.
        allow: further URLs whose hosts pages may use.
        auth: folder of saved logins, as WebArena's tasks name their files; None to begin logged out.
        reset: URL that is posted to before a task on a site begins, by the site's name.
    """

    sites: Mapping[str, str]
    allow: tuple[str, ...] = ()
    auth: Path | None = None
    reset: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option, urls in (("sites", self.sites), ("access.reset", self.reset)):
            for site, url in urls.items():
                if site not in SITES:
                    raise ConfigError(
                        f"env.options.{option}.{site} is no site of WebArena. {did_you_mean(site, SITES)}"
                    )
                _check_url(url, f"env.options.{option}.{site}")
        for url in self.allow:
            _check_url(url, "env.options.access.allow")

    async def open(self, item: TaskItem) -> SiteEnvironment:
        """The sites of a task.

        Raises:
            ConfigError: one has no URL, or the file of its login is missing.
            EnvError: one could not be reset.
        """
        for site in item.data["sites"]:
            if site not in self.sites:
                raise ConfigError(
                    f"task {item.id} needs the site {site}, and env.options.sites has no URL for it. "
                    f"Given: {', '.join(self.sites) or 'none'}."
                )
        await asyncio.gather(*(_post(self.reset[site]) for site in item.data["sites"] if site in self.reset))
        urls = {site: url.rstrip("/") for site, url in self.sites.items()}
        allowed = [*(urls[site] for site in item.data["sites"]), *self.allow]
        named = login_of(item)
        if self.auth is None or not named:
            return SiteEnvironment(urls, routes_of(allowed))
        file = self.auth / named
        return SiteEnvironment(urls, routes_of(allowed), self._login(item, file), login=str(file))

    def _login(self, item: TaskItem, file: Path) -> StorageState:
        try:
            state: StorageState = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"task {item.id} wants the login {file}, which cannot be read: {error}. "
                "Make it with WebArena's auto_login, or begin logged out: env.options.access.auth=null "
                "env.options.access.logged_out=true"
            ) from error
        return state


def login_of(item: TaskItem) -> str:
    """File of the login that a task begins with, "" if it needs none."""
    return Path(item.data.get("storage_state") or "").name


def routes_of(urls: Iterable[str]) -> dict[str, Address]:
    """Where the hosts of URLs listen: where their names lead."""
    found = {}
    for url in urls:
        host, _, port = authority(url).rpartition(":")
        found[f"{host}:{port}"] = Address(host, int(port))
    return found


def _check_url(url: object, option: str) -> None:
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not authority(url):
        raise ConfigError(
            f"{option}={url!r} is no URL. Allowed: http://host:port or https://host, with a path if need be."
        )


async def _post(url: str) -> None:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(RESET_S), raise_for_status=True) as client,
            client.post(url) as answer,
        ):
            await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EnvError(f"the site was not reset by {url}: {type(error).__name__}: {error}") from error
