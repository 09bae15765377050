"""Sources of tasks and of the sites they are played on, selected by `env.options.tasks`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from env_adapters.webarena.browser.chromium import chromium_requirement
from env_adapters.webarena.grading.verified import INSTALL_COMMAND, KIND, data_file
from env_adapters.webarena.options import AccessOptions
from env_adapters.webarena.tasks import items as webarena_items
from env_adapters.webarena.tasks.items import (
    ANSWER_RULES,
    ENV,
    installed_task_file,
    make_item,
    read_items,
    select_by_sites,
    with_rules,
)
from env_adapters.webarena.tasks.miniwob import MiniWobTasks
from env_adapters.webarena.tasks.site_urls import TABS, SiteEnvironment, UserSites, login_file_name
from env_adapters.webarena.tasks.splits import SPLITS
from verl_agent.envs.base import Requirement
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import TaskItem

FILE = "webarena-verified.json"
ORIGINAL_FILE = "test.raw.json"
HARD_FILE = "subsets/webarena-verified-hard.json"
HARD = "hard"
"""Split with the 258 tasks that the authors select as difficult."""
START_FIELDS = ("require_login", "storage_state", "geolocation", "require_reset")
"""Fields that only the original tasks have."""


@cache
def verified_items() -> Sequence[TaskItem]:
    """Return all tasks, in the order of the package."""
    originals = {task["task_id"]: task for task in json.loads(data_file(ORIGINAL_FILE).read_text(encoding="utf-8"))}
    items = []
    for task in json.loads(data_file(FILE).read_text(encoding="utf-8")):
        fields = {name: originals[task["task_id"]].get(name) for name in START_FIELDS}
        fields |= {name: task[name] for name in ("task_id", "sites", "intent", "intent_template_id")}
        fields |= {"start_url": TABS.join(task["start_urls"]), "eval": {"eval_types": [KIND]}}
        items.append(make_item(fields))
    return tuple(items)


def hard_items(items: Sequence[TaskItem]) -> list[TaskItem]:
    """Return the tasks of the split `hard`."""
    ids = set(map(str, json.loads(data_file(HARD_FILE).read_text(encoding="utf-8"))["task_ids"]))
    return [item for item in items if item.id in ids]


ENTRY_POINT_GROUP = "env_adapters.webarena.sources"
FILE_SPLITS = ("train", "test", "all")
"""Splits of a user's task file; the field `split` of its tasks assigns them to the first two."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options that define a task source.

    Attributes:
        tasks: name of the source, or path of a task file in WebArena's format.
        sites: URL of each site by its name, or None.
    """

    tasks: str = ENV
    sites: Mapping[str, str] | None = None
    access: AccessOptions = field(default_factory=AccessOptions)


class TaskSource(Protocol):
    """Source of tasks and of the sites for each of them."""

    @property
    def splits(self) -> Sequence[str]: ...

    @property
    def deterministic(self) -> bool:
        """True if each episode has sites of its own, which are the same every time."""
        ...

    def items(self, split: str) -> Sequence[TaskItem]:
        """Return the items of a split, in the same order on every machine."""
        ...

    def requirements(self) -> Sequence[Requirement]:
        """Return what the tasks need besides the browser."""
        ...

    def check(self) -> None:
        """Check before a run starts that the tasks can be played with these options.

        Raises:
            ConfigError: an option is missing or not allowed.
        """
        ...

    async def open(self, item: TaskItem) -> SiteEnvironment:
        """Return the sites for one episode of a task.

        Raises:
            ConfigError: an option is missing or not allowed.
            EnvError: the sites are not available.
        """
        ...

    def oracle(self, item: TaskItem) -> Callable[[str], str] | None:
        """Return a function from each observation, in order, to the next action, or None without an oracle."""
        ...


class UserSiteTasks(TaskSource):
    """WebArena's 812 tasks, or the tasks of a file, on sites that the user runs.

    `splits.py` defines the splits of the 812 tasks. A file has the split `all`. It also has `train` and `test` if its
    tasks have the field `split`.

    Raises:
        ConfigError: the name or the URL of a site is invalid.
    """

    deterministic = False
    """Episodes share the user's sites, and an action that is sent twice may, for example, order twice."""

    @override
    @staticmethod
    def requirements() -> list[Requirement]:
        return [
            Requirement.package("webarena", webarena_items.INSTALL_COMMAND, "WebArena's 812 tasks"),
            Requirement.package("webarena_verified", INSTALL_COMMAND, "tasks of env.options.tasks=webarena_verified"),
        ]

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        access = options.access
        auth = None if access.auth is None else Path(access.auth)
        self.sites = UserSites(dict(options.sites or {}), access.allowed_urls, auth, dict(access.reset or {}))

    @override
    def items(self, split: str) -> Sequence[TaskItem]:
        """If URLs of sites are set, tasks that need other sites are left out."""
        every = read_items(installed_task_file() if self.options.tasks == ENV else Path(self.options.tasks))
        by_field = self.options.tasks != ENV and split != "all"
        if by_field and not any(item.data.get("split") == split for item in every):
            raise ConfigError(
                f"no task of {self.options.tasks} has split={split!r}. Add a field `split` with the value train or "
                "test to each task, or use split=all. WebArena's own splits do not apply to other tasks."
            )
        items = [item for item in every if item.data.get("split") == split] if by_field else SPLITS[split](every)
        if rules := [name for name in ANSWER_RULES if getattr(self.options.access, name)]:
            items = [with_rules(item, rules) for item in items]
        return items if self.options.sites is None else select_by_sites(items, tuple(self.options.sites))

    @override
    @property
    def splits(self) -> Sequence[str]:
        if self.options.tasks == ENV:
            return tuple(SPLITS)
        used = {item.data.get("split") for item in read_items(Path(self.options.tasks))}
        return tuple(split for split in FILE_SPLITS if split == "all" or split in used)

    @override
    def check(self) -> None:
        """Tasks that start logged in need saved logins or the option `access.logged_out`."""
        access = self.options.access
        if self.options.sites is None or access.auth is not None or access.logged_out:
            return
        items = [item for item in self.items("all") if item.data.get("require_login") and login_file_name(item)]
        if items:
            raise ConfigError(
                f"env.options.access.auth=null, but {len(items)} tasks start logged in (for example, task "
                f"{items[0].id} with {login_file_name(items[0])}). Set it to the folder in which WebArena's auto_login "
                "(browser_env/auto_login.py of github.com/web-arena-x/webarena) saved the logins of your sites; or "
                "play these tasks logged out: env.options.access.logged_out=true"
            )

    @override
    async def open(self, item: TaskItem) -> SiteEnvironment:
        return await self.sites.open(item)

    @override
    def oracle(self, item: TaskItem) -> None: ...


class VerifiedTasks(UserSiteTasks):
    """The tasks of WebArena-Verified on sites that the user runs, in WebArena's splits and the split `hard`."""

    @override
    @property
    def splits(self) -> Sequence[str]:
        return (*SPLITS, HARD)

    @override
    def items(self, split: str) -> Sequence[TaskItem]:
        """If URLs of sites are set, tasks that need other sites are left out."""
        items = hard_items(verified_items()) if split == HARD else SPLITS[split](verified_items())
        return items if self.options.sites is None else select_by_sites(items, tuple(self.options.sites))


def reject_site_urls(name: str, sites: Mapping[str, str] | None) -> None:
    """Raise ConfigError if the user sets URLs of sites, because the source has its own."""
    if sites:
        raise ConfigError(
            f"env.options.sites={dict(sites)!r} is not allowed with tasks={name!r}, which has its own sites. "
            "Remove it: env.options.sites=null"
        )


@cache
def own_sources() -> Mapping[str, Callable[[], TaskSource]]:
    """Return the sources with their own sites, by the value of `env.options.tasks`; any package may register some."""
    registered = {entry.name: entry.load() for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return {**registered, "miniwob": MiniWobTasks}


def make_source(options: SourceOptions) -> TaskSource:
    """Return the task source that the options define."""
    for name in ANSWER_RULES:
        if getattr(options.access, name) and options.tasks in (KIND, *own_sources()):
            raise ConfigError(
                f"env.options.access.{name}=true has no effect with tasks={options.tasks!r}, whose evaluators accept "
                "neither several pages in one URL nor lists of answers, and compare values. Remove it, or use "
                "tasks=webarena or a task file."
            )
    if options.tasks in own_sources():
        reject_site_urls(options.tasks, options.sites)
        return own_sources()[options.tasks]()
    if options.tasks == KIND:
        return VerifiedTasks(options)
    if options.tasks != ENV and not Path(options.tasks).is_file():
        hint = did_you_mean(options.tasks, (ENV, KIND, *own_sources()))
        raise ConfigError(f"env.options.tasks={options.tasks!r} is neither a source of tasks nor a file. {hint}")
    return UserSiteTasks(options)


def source_requirements() -> list[Requirement]:
    """Return the browser, and what each source of tasks needs."""
    return [
        Requirement.package("playwright", "pip install 'verl-agent[webarena]'", "drives the browser"),
        chromium_requirement(),
        *UserSiteTasks.requirements(),
        *(requirement for source in own_sources().values() for requirement in source().requirements()),
    ]
