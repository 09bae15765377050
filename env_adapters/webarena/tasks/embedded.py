"""Two sources of tasks that need no external sites: the embedded sites and MiniWoB's pages."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from playwright.async_api import StorageState
from typing_extensions import override

from env_adapters.webarena.browser.network_proxy import Address, authority
from env_adapters.webarena.sites import URLS, SiteSet
from env_adapters.webarena.sites.records import changes
from env_adapters.webarena.sites.world import DEFAULT_SEED
from env_adapters.webarena.sites_tasks import site_tasks
from env_adapters.webarena.tasks import miniwob
from env_adapters.webarena.tasks.items import ENV, make_item
from env_adapters.webarena.tasks.miniwob_oracle import SOLVED, page_oracle
from env_adapters.webarena.tasks.oracle import ScriptOracle
from env_adapters.webarena.tasks.site_urls import SiteEnvironment, placeholder
from env_adapters.webarena.tasks.sources import TaskSource
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

READ_ONLY_SPLITS = ("train", "test")
COMPLETE_SPLITS = ("train_all", "test_all")


class EmbeddedTasks(TaskSource):
    """Tasks on the sites that `verl-agent sites up` starts; each episode uses a copy of their state.

    The splits `train` and `test` contain the tasks that do not change a site, as in the paper. The splits `train_all`
    and `test_all` also contain the tasks that do.

    Args:
        folder: folder of the sites; None for the default in the cache.
    """

    splits = (*READ_ONLY_SPLITS, *COMPLETE_SPLITS)
    deterministic = True

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    @override
    def items(self, split: str) -> Sequence[TaskItem]:
        half = split.removesuffix("_all")
        tasks = [task for task in site_tasks() if task["split"] == half]
        return [named_item(task) for task in tasks if split in COMPLETE_SPLITS or not task["require_reset"]]

    @override
    def check(self) -> None:
        """Check nothing, because the sites may be started later."""

    @override
    async def open(self, item: TaskItem) -> SiteEnvironment:
        sites = SiteSet.running(self.folder)
        sites.check(DEFAULT_SEED)
        copy = sites.acquire()
        reached = {authority(URLS[site]) for site in reached_sites(item)}
        routes = {
            name: Address(host, port, copy.headers) for name, (host, port) in sites.routes.items() if name in reached
        }
        cookies: list[Any] = copy.cookies(item.data["sites"]) if item.data.get("require_login") else []
        login: StorageState = {"cookies": cookies, "origins": []}
        read_changes = partial(changes, sites.home.seed(sites.seed), copy.folder)
        return SiteEnvironment(copy.urls, routes, login, copy.release, changes=read_changes)

    @override
    def oracle(self, item: TaskItem) -> Callable[[str], str]:
        return ScriptOracle(item.data["oracle"], URLS).act


class MiniWobTasks(TaskSource):
    """Tasks on MiniWoB's pages, in the splits `train`, `test` and `click_all`."""

    splits = tuple(miniwob.SEEDS)
    deterministic = True

    @override
    def items(self, split: str) -> Sequence[TaskItem]:
        miniwob.pages_folder()  # raises ConfigError if the package is not installed
        return [named_item(task) for task in miniwob.miniwob_tasks(split)]

    @override
    def check(self) -> None:
        """Check nothing, because `items` checks that the pages are installed."""

    @override
    async def open(self, item: TaskItem) -> SiteEnvironment:
        header = {miniwob.PAGE_HEADER: item.id.split(":")[1]}
        routes = {name: Address(host, port, header) for name, (host, port) in miniwob.page_server().routes.items()}
        return SiteEnvironment({miniwob.SITE: miniwob.URL}, routes)

    @override
    def oracle(self, item: TaskItem) -> Callable[[str], str] | None:
        """Only pages with a complete instruction have an oracle."""
        return page_oracle() if item.id.split(":")[1] in SOLVED else None


def reached_sites(item: TaskItem) -> list[str]:
    """Return the sites that an episode of a task reaches: its own, and those that its evaluators check."""
    evaluation = json.dumps(item.data["eval"])
    return [site for site in URLS if site in item.data["sites"] or placeholder(site) in evaluation]


def named_item(task: Mapping[str, Any]) -> TaskItem:
    """Return a task as an item whose id is its site and its name."""
    item = make_item(task)
    return TaskItem(ENV, f"{task['sites'][0]}:{task['id']}", item.data, item.category)


def reject_site_urls(name: str, sites: Mapping[str, str] | None) -> None:
    """Raise ConfigError if the user sets URLs of sites, because the sources of this module have their own."""
    if sites:
        raise ConfigError(
            f"env.options.sites={dict(sites)!r} is not allowed with tasks={name!r}, which has its own sites. "
            "Remove it: env.options.sites=null"
        )
