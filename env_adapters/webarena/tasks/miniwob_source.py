"""Source of the tasks on MiniWoB's pages."""

from collections.abc import Callable, Sequence

from env_adapters.webarena.browser.network_proxy import Address
from env_adapters.webarena.tasks import miniwob
from env_adapters.webarena.tasks.items import named_item
from env_adapters.webarena.tasks.miniwob_oracle import SOLVED, page_oracle
from env_adapters.webarena.tasks.site_urls import SiteEnvironment
from verl_agent.envs.base import Requirement
from verl_agent.types import TaskItem


class MiniWobTasks:
    """Tasks on MiniWoB's pages, in the splits `train`, `test` and `click_all`."""

    splits = tuple(miniwob.SEEDS)
    deterministic = True

    @staticmethod
    def requirements() -> list[Requirement]:
        return [Requirement.package("miniwob", miniwob.INSTALL_COMMAND, "tasks of env.options.tasks=miniwob")]

    def items(self, split: str) -> Sequence[TaskItem]:
        miniwob.pages_folder()  # raises ConfigError if the package is not installed
        return [named_item(task) for task in miniwob.miniwob_tasks(split)]

    def check(self) -> None:
        """Checks nothing, because `items` checks that the pages are installed."""

    async def open(self, item: TaskItem) -> SiteEnvironment:
        header = {miniwob.PAGE_HEADER: item.id.split(":")[1]}
        routes = {name: Address(host, port, header) for name, (host, port) in miniwob.page_server().routes.items()}
        return SiteEnvironment({miniwob.SITE: miniwob.URL}, routes)

    def oracle(self, item: TaskItem) -> Callable[[str], str] | None:
        """Only pages with a complete instruction have an oracle."""
        return page_oracle() if item.id.split(":")[1] in SOLVED else None
