"""The sites that run, and copies of their state for one session each.

    sites = SiteSet.running()                            # those of `verl-agent sites up`
    copy = sites.acquire()                               # a folder of its own; files follow with the first request
    browser.new_context(extra_http_headers=copy.headers) # each request of the session names its copy
    context.add_cookies(copy.cookies(["shopping"]))      # logged in, where a task asks for it
    ...
    copy.release()

All sessions use the same addresses. What they change is in their copy alone: two that put something into the cart of
the same customer do not see each other. A request under a site's name without a copy is refused. A model cannot set
headers, so it cannot reach another session's copy.
"""

import json
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from env_adapters.webarena.sites.folders import Home, sites_home
from env_adapters.webarena.sites.logins import all_cookies
from env_adapters.webarena.sites.served.copies import HEADER
from verl_agent.errors import ConfigError, EnvError

ADDRESSES = {
    "shopping": ("shop", "http://shop.localhost:{port}"),
    "shopping_admin": ("shop", "http://admin.localhost:{port}/dashboard"),
    "reddit": ("forum", "http://forum.localhost:{port}"),
    "gitlab": ("code", "http://code.localhost:{port}"),
}
"""For each of WebArena's names the process that answers and its address. The customer and the administrator of the shop
have names of their own, so that a browser can be logged in as both."""
START = "Start the sites: verl-agent sites up"


@dataclass(frozen=True, slots=True)
class Copy:
    """The state of the sites for one session.

    Attributes:
        name: 32 hexadecimal digits.
        folder: where its files lie.
        urls: address of each site, by WebArena's name.
        seed: of the world.
    """

    name: str
    folder: Path
    urls: Mapping[str, str]
    seed: int

    @property
    def headers(self) -> dict[str, str]:
        """What each request of the session has to send."""
        return {HEADER: self.name}

    def cookies(self, sites: Iterable[str]) -> list[dict[str, str]]:
        """Cookies that log the session in at `sites`, as Playwright's `add_cookies` takes them."""
        return all_cookies([(site, self.urls[site]) for site in sites if site in self.urls], self.seed)

    def release(self) -> None:
        """Remove the copy; may be called more than once."""
        for _ in range(3):  # a request that is under way may still write
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return


@dataclass(frozen=True, slots=True)
class SiteSet:
    """A set of sites that runs.

    Attributes:
        home: its folder.
        ports: port of each process: shop, forum, code.
        seed: of the world that the sites show.
        pid: of the process that looks after them.
    """

    home: Home
    ports: Mapping[str, int]
    seed: int
    pid: int

    @classmethod
    def running(cls, folder: Path | None = None) -> "SiteSet":
        """The sites that `verl-agent sites up` started.

        Raises:
            ConfigError: none run.
        """
        home = Home(folder or sites_home())
        try:
            state = json.loads(home.state.read_text(encoding="utf-8"))
            return cls(home, state["ports"], state["seed"], state["pid"])
        except FileNotFoundError as error:
            raise ConfigError(f"No sites run from {home.folder}. {START}") from error
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{home.state} cannot be read: {error!r}. {START}") from error

    @property
    def urls(self) -> dict[str, str]:
        """Address of each site, by WebArena's name."""
        return {site: url.format(port=self.ports[name]) for site, (name, url) in ADDRESSES.items()}

    @property
    def origins(self) -> list[str]:
        """What a browser has to reach, and nothing else: scheme, host and port."""
        return sorted({"/".join(url.split("/")[:3]) for url in self.urls.values()})

    def acquire(self) -> Copy:
        """A copy for one session, as the world is at its beginning.

        Raises:
            EnvError: it cannot be made.
        """
        name = uuid.uuid4().hex
        folder = self.home.copies / name
        try:
            folder.mkdir()
        except OSError as error:
            raise EnvError(f"a copy of the sites cannot be made: {error}. {START}") from error
        return Copy(name, folder, self.urls, self.seed)
