"""Running sites, and copies of their state for one session each.

    sites = SiteSet.running()                            # those of `verl-agent sites up`
    copy = sites.acquire()                               # a folder of its own; the first request adds the files
    browser.new_context(extra_http_headers=copy.headers) # each request of the session selects its copy
    context.add_cookies(copy.cookies(["shopping"]))      # log in, if a task requires it
    ...
    copy.release()

The URLs are the same for all sessions and on every machine; the client connects them to `sites.routes`. A session
changes only its own copy, so two sessions can fill the cart of the same customer. A request to a site without a copy is
refused. A model cannot set headers, so it cannot reach another session's copy.
"""

import json
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from env_adapters.web_sites.folders import Home, code_key, sites_home
from env_adapters.web_sites.logins import cookies
from env_adapters.web_sites.served.copies import HEADER
from env_adapters.web_sites.world import DEFAULT_SEED
from verl_agent.errors import ConfigError, EnvError

SITES = {
    "shopping": ("shop", "http://shop.test"),
    "shopping_admin": ("shop", "http://admin.test/dashboard"),
    "reddit": ("forum", "http://forum.test"),
    "gitlab": ("code", "http://code.test"),
}
"""Server and URL of each site by its name in WebArena.

The customer and the administrator of the shop have different hosts, so that a browser can be logged in as both. The
domain `.test` is reserved (RFC 2606), so the client has to connect these URLs to `SiteSet.routes`.
"""
URLS: Mapping[str, str] = {site: url for site, (_, url) in SITES.items()}
"""URL of each site by its name in WebArena; the same on every machine."""
START = "Start the sites: verl-agent sites up"


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy of the state of the sites for one session.

    Attributes:
        name: name of the copy, 32 hexadecimal digits.
        urls: URL of each site by its name in WebArena.
    """

    name: str
    folder: Path
    urls: Mapping[str, str]
    seed: int

    @property
    def headers(self) -> dict[str, str]:
        """Headers that each request of the session must have."""
        return {HEADER: self.name}

    def cookies(self, sites: Iterable[str]) -> list[dict[str, object]]:
        """Return the cookies that log the session in on `sites`, in the format of Playwright's `add_cookies`."""
        return [cookie for site in sites if site in self.urls for cookie in cookies(site, self.urls[site], self.seed)]

    def release(self) -> None:
        """Remove the copy; a second call has no effect."""
        for _ in range(3):  # an open request may still write files
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return


@dataclass(frozen=True, slots=True)
class SiteSet:
    """Set of running sites.

    Attributes:
        ports: port of each server: shop, forum, code.
        code: hash of the code that generated the data and serves it, or "" if a version without hashes started it.
    """

    home: Home
    ports: Mapping[str, int]
    seed: int
    pid: int
    code: str = field(default_factory=code_key)

    @classmethod
    def running(cls, folder: Path | None = None) -> "SiteSet":
        """Return the sites that `verl-agent sites up` has started."""
        home = Home(folder or sites_home())
        try:
            state = json.loads(home.state.read_text(encoding="utf-8"))
            return cls(home, state["ports"], state["seed"], state["pid"], state.get("code", ""))
        except FileNotFoundError as error:
            raise ConfigError(f"No sites run from {home.folder}. {START}") from error
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{home.state} cannot be read: {error!r}. {START}") from error

    def check(self, seed: int) -> None:
        """Check that the sites show the data of `seed` as the current code generates it.

        Raises:
            ConfigError: they were started with another seed or by other code, so the answers of tasks may differ.
        """
        for name, actual, expected in (("seed", self.seed, seed), ("code", self.code or "older", code_key())):
            if actual != expected:
                raise ConfigError(
                    f"The sites that run from {self.home.folder} were started with the {name} {actual}, but "
                    f"{expected} is required: pages and answers would differ. Restart them: verl-agent sites down, "
                    f"then verl-agent sites up{'' if seed == DEFAULT_SEED else f' --seed {seed}'}"
                )

    @property
    def urls(self) -> dict[str, str]:
        """URL of each site by its name in WebArena; the same on every machine."""
        return dict(URLS)

    @property
    def routes(self) -> dict[str, tuple[str, int]]:
        """Host and port of each site by the authority in its URL: `{"shop.test:80": ("127.0.0.1", 7770), ...}`."""
        return {f"{urlsplit(url).hostname}:80": ("127.0.0.1", self.ports[name]) for name, url in SITES.values()}

    def acquire(self) -> Copy:
        """Return a fresh copy for one session."""
        name = uuid.uuid4().hex
        folder = self.home.copies / name
        try:
            folder.mkdir()
        except OSError as error:
            raise EnvError(f"a copy of the sites cannot be created: {error}. {START}") from error
        return Copy(name, folder, self.urls, self.seed)
