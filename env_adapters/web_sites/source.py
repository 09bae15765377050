"""Source of the tasks on the embedded sites, for the browser of the adapter `webarena`."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from playwright.async_api import StorageState

from env_adapters.web_sites.install import fossil_requirements
from env_adapters.web_sites.records import record_changes
from env_adapters.web_sites.siteset import URLS, SiteSet
from env_adapters.web_sites.tasks import site_tasks
from env_adapters.web_sites.world import DEFAULT_SEED
from env_adapters.webarena.browser.network_proxy import SiteAddress, authority
from env_adapters.webarena.tasks.items import named_item
from env_adapters.webarena.tasks.oracle import ScriptOracle
from env_adapters.webarena.tasks.site_urls import SiteEnvironment, placeholder
from verl_agent.types import TaskItem

READ_ONLY_SPLITS = ("train", "test")
COMPLETE_SPLITS = ("train_all", "test_all")


class EmbeddedTasks:
    """Tasks on the sites that `verl-agent sites up` starts; each episode uses a copy of their state.

    The splits `train` and `test` contain the tasks that do not change a site, as in the paper. The splits `train_all`
    and `test_all` also contain the tasks that do.
    """

    splits = (*READ_ONLY_SPLITS, *COMPLETE_SPLITS)
    deterministic = True

    requirements = staticmethod(fossil_requirements)

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def items(self, split: str) -> Sequence[TaskItem]:
        half = split.removesuffix("_all")
        tasks = [task for task in site_tasks() if task["split"] == half]
        return [named_item(task) for task in tasks if split in COMPLETE_SPLITS or not task["require_reset"]]

    def check(self) -> None:
        """Checks nothing, because the sites may be started later."""

    async def open(self, item: TaskItem) -> SiteEnvironment:
        sites = SiteSet.running(self.folder)
        sites.check(DEFAULT_SEED)
        copy = sites.acquire()
        reached = {authority(URLS[site]) for site in reached_sites(item)}
        routes = {
            name: SiteAddress(host, port, copy.headers)
            for name, (host, port) in sites.routes.items()
            if name in reached
        }
        cookies: list[Any] = copy.cookies(item.data["sites"]) if item.data.get("require_login") else []
        login: StorageState = {"cookies": cookies, "origins": []}
        read_changes = partial(record_changes, sites.home.seed(sites.seed), copy.folder)
        return SiteEnvironment(copy.urls, routes, login, copy.release, changes=read_changes)

    def oracle(self, item: TaskItem) -> Callable[[str], str]:
        return ScriptOracle(item.data["oracle"], URLS).act


def reached_sites(item: TaskItem) -> list[str]:
    """Return the sites that an episode of a task reaches: its own, and those that its evaluators check."""
    evaluation = json.dumps(item.data["eval"])
    return [site for site in URLS if site in item.data["sites"] or placeholder(site) in evaluation]
