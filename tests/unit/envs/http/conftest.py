"""Servers that the tests of the HTTP protocol share."""

from collections.abc import Iterator

import pytest

from env_adapters.guess_number.adapter import GuessNumber
from env_adapters.textcraft.adapter import TextCraft
from tests.support.serving import RunningEnv, pool_of, serving


@pytest.fixture(scope="package")
def textcraft() -> Iterator[RunningEnv]:
    with serving("textcraft", pool_of(TextCraft)) as running:
        yield running


@pytest.fixture
def guess() -> Iterator[RunningEnv]:
    with serving("guess_number", pool_of(GuessNumber, {"tolerant": True}, slots=4)) as running:
        yield running
