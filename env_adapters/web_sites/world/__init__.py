"""Generated data that all sites show; the same seed gives the same products, topics and tickets."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from env_adapters.web_sites.world.code import CodeWorld
from env_adapters.web_sites.world.forum import ForumWorld
from env_adapters.web_sites.world.shop import ShopWorld

DEFAULT_SEED = 1
"""The world that the tasks are about."""


class GeneratedWorld:
    """Shop, forum and code host."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.shop = ShopWorld(seed)
        self.code = CodeWorld(seed)
        self.forum = ForumWorld(seed, self.shop, self.code)

    def listing(self) -> Mapping[str, Any]:
        """All of it, in an order that is the same everywhere."""
        return {
            "categories": self.shop.categories,
            "products": self.shop.products,
            "customers": self.shop.customers,
            "reviews": self.shop.reviews,
            "orders": self.shop.orders,
            "members": self.forum.members,
            "topics": self.forum.topics,
            "developers": self.code.people,
            "projects": self.code.projects,
        }


@cache
def world(seed: int = DEFAULT_SEED) -> GeneratedWorld:
    """The world of a seed, made once per process."""
    return GeneratedWorld(seed)
