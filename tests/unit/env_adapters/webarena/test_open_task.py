"""Tests of an open task without a browser."""

import asyncio

import pytest

from env_adapters.webarena.open_task import open_task
from env_adapters.webarena.options import EconomyOptions, ViewOptions
from env_adapters.webarena.tasks.site_urls import SiteEnvironment
from verl_agent.types import TaskItem


def test_sites_of_a_task_that_cannot_start_are_released_at_once():
    released = []
    sites = SiteEnvironment({}, {}, release=lambda: released.append(True))
    without_start = TaskItem("webarena", "1", {"eval": {"eval_types": []}})
    with pytest.raises(KeyError, match="start_url"):
        asyncio.run(open_task(without_start, sites, ViewOptions(), EconomyOptions(), None))
    assert released == [True]
