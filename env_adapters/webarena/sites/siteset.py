"""The sites that run, and copies of their state for one session each.

    sites = SiteSet.running()                            # those of `verl-agent sites up`
    copy = sites.acquire()                               # a folder of its own; files follow with the first request
    browser.new_context(extra_http_headers=copy.headers) # each request of the session names its copy
    context.add_cookies(copy.cookies(["shopping"]))      # logged in, where a task asks for it
    ...
    copy.release()

The addresses are the same for all sessions and on every machine; whoever opens them leads them to `sites.routes`. What
a session changes is in its copy alone: two that put something into the cart of the same customer do not see each other.
A request under a site's name without a copy is refused. A model cannot set headers, so it cannot reach another
session's copy.
"""

import json
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from env_adapters.webarena.sites.folders import Home, code_key, sites_home
from env_adapters.webarena.sites.logins import cookies
from env_adapters.webarena.sites.served.copies import HEADER
from env_adapters.webarena.sites.world import DEFAULT_SEED
from verl_agent.errors import ConfigError, EnvError

SITES = {
    "shopping": ("shop", "http://shop.test"),
    "shopping_admin": ("shop", "http://admin.test/dashboard"),
    "reddit": ("forum", "http://forum.test"),
    "gitlab": ("code", "http://code.test"),
}
"""For each of WebArena's names the process that answers, and the address under which pages and tasks name it. The
customer and the administrator of the shop have hosts of their own, so that a browser can be logged in as both. `.test`
is reserved (RFC 2606): whoever opens these addresses says where they lead, see `SiteSet.routes`."""
URLS: Mapping[str, str] = {site: url for site, (_, url) in SITES.items()}
"""Address of each site, by WebArena's name; the same on every machine."""
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

    def cookies(self, sites: Iterable[str]) -> list[dict[str, object]]:
        """Cookies that log the session in at `sites`, as Playwright's `add_cookies` and `storage_state` take them."""
        return [cookie for site in sites if site in self.urls for cookie in cookies(site, self.urls[site], self.seed)]

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
        code: name of the code that they were made and are served by, "" if it is older than such names.
    """

    home: Home
    ports: Mapping[str, int]
    seed: int
    pid: int
    code: str = field(default_factory=code_key)

    @classmethod
    def running(cls, folder: Path | None = None) -> "SiteSet":
        """The sites that `verl-agent sites up` started.

        Raises:
            ConfigError: none run.
        """
        home = Home(folder or sites_home())
        try:
            state = json.loads(home.state.read_text(encoding="utf-8"))
            return cls(home, state["ports"], state["seed"], state["pid"], state.get("code", ""))
        except FileNotFoundError as error:
            raise ConfigError(f"No sites run from {home.folder}. {START}") from error
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{home.state} cannot be read: {error!r}. {START}") from error

    def check(self, seed: int) -> None:
        """Refuse sites that show another world than the one of `seed` as the present code makes it.

        Raises:
            ConfigError: they were started with another seed, or by other code, so that tasks have other answers.
        """
        for what, found, wanted in (("the seed", self.seed, seed), ("the code", self.code or "older", code_key())):
            if found != wanted:
                raise ConfigError(
                    f"The sites that run from {self.home.folder} were started with {what} {found}, and {wanted} is "
                    "wanted here: pages and answers would differ. Start them anew: verl-agent sites down, "
                    f"then verl-agent sites up{'' if seed == DEFAULT_SEED else f' --seed {seed}'}"
                )

    @property
    def urls(self) -> dict[str, str]:
        """Address of each site, by WebArena's name; the same on every machine."""
        return dict(URLS)

    @property
    def routes(self) -> dict[str, tuple[str, int]]:
        """Where the hosts of these addresses listen, and what a browser has to reach and nothing else.

        Host and port, by the authority in the addresses: `{"shop.test:80": ("127.0.0.1", 7770), ...}`.
        """
        return {f"{urlsplit(url).hostname}:80": ("127.0.0.1", self.ports[name]) for name, url in SITES.values()}

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
