"""Where tasks come from, and what opens the sites that they are played on; `env.options.tasks` chooses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from env_adapters.webarena.options import AccessOptions
from env_adapters.webarena.tasks.embedded import EmbeddedTasks, MiniWobTasks, refuse_urls
from env_adapters.webarena.tasks.items import ENV, installed_tasks, items_of, selected
from env_adapters.webarena.tasks.site_urls import GivenSites, SiteEnvironment, login_of
from env_adapters.webarena.tasks.splits import SPLITS
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import TaskItem

OF_A_FILE = ("train", "test", "all")
"""Splits of a user's file; its tasks say which of the first two they are in."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a source is made from.

    Attributes:
        tasks: its name, or a file of tasks in WebArena's format.
        sites: URL of each site by its name; None where none are given.
        access: how these are used.
    """

    tasks: str = ENV
    sites: Mapping[str, str] | None = None
    access: AccessOptions = field(default_factory=AccessOptions)


class TaskSource(Protocol):
    """Tasks, and the sites for each of them."""

    @property
    def splits(self) -> Sequence[str]:
        """Names that `items` accepts."""
        ...

    def items(self, split: str) -> Sequence[TaskItem]:
        """The items of a split, in the same order on every machine."""
        ...

    def check(self) -> None:
        """Refuse, before anything starts, what its tasks cannot be played with.

        Raises:
            ConfigError: a setting does not allow it.
        """
        ...

    async def open(self, item: TaskItem) -> SiteEnvironment:
        """The sites of one episode of a task.

        Raises:
            ConfigError: a setting does not allow it.
            EnvError: they cannot be had now.
        """
        ...

    def oracle(self, item: TaskItem) -> Callable[[str], str] | None:
        """What solves a task by what is seen: the action for each observation, in order; None if nothing does."""
        ...


class GivenTasks:
    """WebArena's 812 tasks, or those of a file, on sites that the user names; see `splits.py`.

    In a file whose tasks have a field `split`, that says which are in `train` and which in `test`; another has `all`.

    Raises:
        ConfigError: a site has no name or URL that could be meant.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        access = options.access
        self.sites = GivenSites(dict(options.sites or {}), access.allow, access.auth, dict(access.reset or {}))

    def items(self, split: str) -> Sequence[TaskItem]:
        """See `TaskSource`; with the URLs of some sites, only tasks that need no others."""
        every = items_of(installed_tasks() if self.options.tasks == ENV else Path(self.options.tasks))
        named = self.options.tasks != ENV and split != "all"
        if named and not any(item.data.get("split") == split for item in every):
            raise ConfigError(
                f"no task of {self.options.tasks} has split={split!r}. Give each a field `split` with the value train "
                "or test, or take all: which of WebArena's own tasks are held out says nothing of others."
            )
        items = [item for item in every if item.data.get("split") == split] if named else SPLITS[split](every)
        return items if self.options.sites is None else selected(items, tuple(self.options.sites))

    @property
    def splits(self) -> Sequence[str]:
        """See `TaskSource`."""
        if self.options.tasks == ENV:
            return tuple(SPLITS)
        named = {item.data.get("split") for item in items_of(Path(self.options.tasks))}
        return tuple(split for split in OF_A_FILE if split == "all" or split in named)

    def check(self) -> None:
        """See `TaskSource`: who plays tasks of a customer logged out has to say so."""
        access = self.options.access
        if self.options.sites is None or access.auth is not None or access.logged_out:
            return
        waiting = [item for item in self.items("all") if item.data.get("require_login") and login_of(item)]
        if waiting:
            raise ConfigError(
                f"env.options.access.auth=null, and tasks begin logged in: {len(waiting)}, such as {waiting[0].id} "
                f"by {login_of(waiting[0])}. Set it to the folder in which WebArena's auto_login "
                "(browser_env/auto_login.py of github.com/web-arena-x/webarena) saved the logins of your sites; or "
                "play all logged out: env.options.access.logged_out=true"
            )

    async def open(self, item: TaskItem) -> SiteEnvironment:
        """See `TaskSource`."""
        return await self.sites.open(item)

    def oracle(self, item: TaskItem) -> None:
        """See `TaskSource`."""


def _embedded(options: SourceOptions) -> TaskSource:
    refuse_urls(options.tasks, options.sites)
    return EmbeddedTasks()


def _miniwob(options: SourceOptions) -> TaskSource:
    refuse_urls(options.tasks, options.sites)
    return MiniWobTasks()


SOURCES: Mapping[str, Callable[[SourceOptions], TaskSource]] = {
    ENV: GivenTasks,
    "embedded": _embedded,
    "miniwob": _miniwob,
}
"""By the name that `env.options.tasks` takes; anything else is a file."""


def source_of(options: SourceOptions) -> TaskSource:
    """The source that `env.options` mean.

    Raises:
        ConfigError: there is none of that name, and no such file; or see the source itself.
    """
    made = SOURCES.get(options.tasks)
    if made is None and not Path(options.tasks).is_file():
        hint = did_you_mean(options.tasks, SOURCES)
        raise ConfigError(f"env.options.tasks={options.tasks!r} is no source of tasks and no file. {hint}")
    return (made or GivenTasks)(options)
