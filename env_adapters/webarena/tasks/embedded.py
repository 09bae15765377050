"""Two sources of tasks that every machine has: the embedded sites, and MiniWoB's pages."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from env_adapters.webarena.browser.network_proxy import Address, authority
from env_adapters.webarena.sites import URLS, SiteSet
from env_adapters.webarena.sites.world import DEFAULT_SEED
from env_adapters.webarena.sites_tasks import site_tasks
from env_adapters.webarena.tasks import miniwob
from env_adapters.webarena.tasks.items import ENV, item_of
from env_adapters.webarena.tasks.miniwob_oracle import SOLVED, page_oracle
from env_adapters.webarena.tasks.oracle import Oracle
from env_adapters.webarena.tasks.site_urls import SiteEnvironment, placeholder
from verl_agent.errors import ConfigError
from verl_agent.types import TaskItem

READING = ("train", "test")
CHANGING = ("train_all", "test_all")


class EmbeddedTasks:
    """The tasks of the sites that `verl-agent sites up` starts, each episode on a copy of their state.

    Splits: `train` and `test` hold the tasks that only read, as the paper; `train_all` and `test_all` those that change
    something too.

    Args:
        folder: of the sites; None for the one in the cache.
    """

    splits = (*READING, *CHANGING)

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def items(self, split: str) -> Sequence[TaskItem]:
        """See `TaskSource`."""
        half = split.removesuffix("_all")
        listed = [task for task in site_tasks() if task["split"] == half]
        return [item(task) for task in listed if split in CHANGING or not task["require_reset"]]

    def check(self) -> None:
        """See `TaskSource`; sites may be started later."""

    async def open(self, item: TaskItem) -> SiteEnvironment:
        """See `TaskSource`."""
        sites = SiteSet.running(self.folder)
        sites.check(DEFAULT_SEED)
        copy = sites.acquire()
        named = {authority(URLS[site]) for site in reached(item)}
        routes = {
            name: Address(host, port, copy.headers) for name, (host, port) in sites.routes.items() if name in named
        }
        cookies: list[Any] = copy.cookies(item.data["sites"]) if item.data.get("require_login") else []
        return SiteEnvironment(copy.urls, routes, {"cookies": cookies, "origins": []}, copy.release)

    def oracle(self, item: TaskItem) -> Callable[[str], str]:
        """See `TaskSource`."""
        return Oracle(item.data["oracle"], URLS).act


class MiniWobTasks:
    """MiniWoB's pages, in splits `train` and `test`."""

    splits = tuple(miniwob.SEEDS)

    def items(self, split: str) -> Sequence[TaskItem]:
        """See `TaskSource`."""
        miniwob.pages_folder()  # without the package there is nothing to play
        return [item(task) for task in miniwob.miniwob_tasks(split)]

    def check(self) -> None:
        """See `TaskSource`; its pages are looked for where tasks are listed."""

    async def open(self, item: TaskItem) -> SiteEnvironment:
        """See `TaskSource`."""
        routes = {name: Address(host, port) for name, (host, port) in miniwob.pages().routes.items()}
        return SiteEnvironment({miniwob.SITE: miniwob.URL}, routes)

    def oracle(self, item: TaskItem) -> Callable[[str], str] | None:
        """See `TaskSource`; of the pages that say in a sentence what to do."""
        return page_oracle() if item.id.split(":")[1] in SOLVED else None


def reached(item: TaskItem) -> list[str]:
    """The sites that an episode of a task reaches: its own, and those on which it is judged."""
    judged = json.dumps(item.data["eval"])
    return [site for site in URLS if site in item.data["sites"] or placeholder(site) in judged]


def item(task: Mapping[str, Any]) -> TaskItem:
    """A task as an item that is called by its name."""
    made = item_of(task)
    return TaskItem(ENV, f"{task['sites'][0]}:{task['id']}", made.data, made.category)


def refuse_urls(name: str, sites: Mapping[str, str] | None) -> None:
    """The sources of this module know where their sites are.

    Raises:
        ConfigError: the user gives URLs.
    """
    if sites:
        raise ConfigError(
            f"env.options.sites={dict(sites)!r} does not go with tasks={name!r}, which brings its own sites."
        )
