"""Sites of one episode: their URLs, network addresses, login, and release."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import StorageState

from env_adapters.webarena.browser.network_proxy import SiteAddress, authority
from env_adapters.webarena.grading.changes import Change
from env_adapters.webarena.tasks.items import SITES
from verl_agent.envs.machine.proxies import proxy_of
from verl_agent.errors import ConfigError, EnvError, did_you_mean
from verl_agent.types import TaskItem

TABS = " |AND| "
"""Separates the URLs of the tabs with which a task starts."""
RESET_TIMEOUT_S = 120.0


def placeholder(site: str) -> str:
    """Return the placeholder for the URL of a site in tasks."""
    return f"__{site.upper()}__"


def fill_placeholders(text: str, urls: Mapping[str, str]) -> str:
    """Return a text with the placeholders of sites replaced by their URLs."""
    for site in sorted(urls, key=len, reverse=True):
        text = text.replace(placeholder(site), urls[site])
    return text


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class SiteEnvironment:
    """Sites of one episode.

    Attributes:
        urls: URL of each site, without a slash at its end, by its name.
        storage_state: initial cookies and local storage.
        release: function that releases the sites; it may block and runs in a thread.
        login_file: file that `storage_state` was read from, or "" if it was created.
        changes: function that reads the changes of the sites' state; None for sites that are not embedded.
    """

    urls: Mapping[str, str]
    routes: Mapping[str, SiteAddress]
    storage_state: StorageState | None = None
    release: Callable[[], None] = field(default=_do_nothing)
    login_file: str = ""
    changes: Callable[[], Sequence[Change]] | None = None

    @property
    def urls_by_placeholder(self) -> Mapping[str, str]:
        """URL of each site by its placeholder."""
        return {placeholder(site): url for site, url in self.urls.items()}

    def fill_urls(self, value: Any) -> Any:
        """Return a value of a task with the placeholders in all its strings replaced by URLs."""
        if isinstance(value, str):
            return fill_placeholders(value, self.urls)
        if isinstance(value, Mapping):
            return {key: self.fill_urls(part) for key, part in value.items()}
        return [self.fill_urls(part) for part in value] if isinstance(value, list | tuple) else value

    def start_urls(self, item: TaskItem) -> list[str]:
        """Return the start URL of each tab of the task."""
        return str(self.fill_urls(item.data["start_url"])).split(TABS)

    def other_sites_note(self, item: TaskItem) -> list[str]:
        """Return a note with the sites of a task that no tab starts on, or an empty list."""
        start_urls = self.start_urls(item)
        urls = {site: self.urls[site] for site in item.data["sites"] if site in self.urls}
        others = [
            f"{site}: {url}" for site, url in urls.items() if not any(start.startswith(url) for start in start_urls)
        ]
        return [f"Other sites of this task: {', '.join(others)}"] if others else []


@dataclass(frozen=True, slots=True)
class UserSites:
    """Sites that the user runs; all episodes share them.

    Attributes:
        sites: URL of each site by its name.
        allow: further URLs whose hosts pages may use.
        auth: folder of saved logins, with the file names of WebArena's tasks; None to start logged out.
        reset: URL by site; a POST request to it resets the site before a task.
    """

    sites: Mapping[str, str]
    allow: tuple[str, ...] = ()
    auth: Path | None = None
    reset: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option, urls in (("sites", self.sites), ("access.reset", self.reset)):
            for site, url in urls.items():
                if site not in SITES:
                    raise ConfigError(f"env.options.{option}.{site} is unknown. {did_you_mean(site, SITES)}")
                _check_url(url, f"env.options.{option}.{site}")
        for url in self.allow:
            _check_url(url, "env.options.access.allow")

    async def open(self, item: TaskItem) -> SiteEnvironment:
        """Return the sites of a task.

        Raises:
            ConfigError: a site has no URL, or the login of the task cannot be read.
            EnvError: a site could not be reset.
        """
        for site in item.data["sites"]:
            if site not in self.sites:
                raise ConfigError(
                    f"task {item.id} needs the site {site}, and env.options.sites has no URL for it. "
                    f"Configured sites: {', '.join(self.sites) or 'none'}."
                )
        await asyncio.gather(*(_post(self.reset[site]) for site in item.data["sites"] if site in self.reset))
        urls = {site: url.rstrip("/") for site, url in self.sites.items()}
        allowed = [*(urls[site] for site in item.data["sites"]), *self.allow]
        login = login_file_name(item)
        if self.auth is None or not login:
            return SiteEnvironment(urls, make_routes(allowed))
        file = self.auth / login
        return SiteEnvironment(urls, make_routes(allowed), _read_login(item, file), login_file=str(file))


def login_file_name(item: TaskItem) -> str:
    """Return the name of the file with the login of a task, or "" if the task needs no login."""
    return Path(item.data.get("storage_state") or "").name


def make_routes(urls: Iterable[str]) -> dict[str, SiteAddress]:
    """Return routes that send the host of each URL to the address that its name resolves to."""
    routes = {}
    for url in urls:
        host, _, port = authority(url).rpartition(":")
        routes[f"{host}:{port}"] = SiteAddress(host, int(port))
    return routes


def _read_login(item: TaskItem, file: Path) -> StorageState:
    try:
        state: StorageState = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"task {item.id} needs the login {file}, which cannot be read: {error}. "
            "Create it with WebArena's auto_login, or start logged out: env.options.access.auth=null "
            "env.options.access.logged_out=true"
        ) from error
    return state


def _check_url(url: object, option: str) -> None:
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not authority(url):
        raise ConfigError(
            f"{option}={url!r} is not a valid URL. Allowed: http://host:port or https://host, optionally with a path."
        )


async def _post(url: str) -> None:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(RESET_TIMEOUT_S), raise_for_status=True) as client,
            client.post(url, proxy=proxy_of(url)) as response,
        ):
            await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EnvError(f"the site was not reset by {url}: {type(error).__name__}: {error}") from error
