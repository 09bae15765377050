"""A server takes no more after many episodes, some of them left by killed clients, than before. `make soak`."""

from collections.abc import Iterator

import pytest

from tests.support.corpus import embedded_corpus
from tests.support.scripts import scripts
from tests.support.served import serve_command, started
from tests.support.soaking import Order, soak

CLIENTS = {"textcraft": 3, "babyai": 3, "deepsearch": 3, "scienceworld": 1}
"""Of which each plays nine episodes and leaves one."""


@pytest.fixture(scope="module", autouse=True)
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with embedded_corpus(tmp_path_factory.mktemp("cache")):
        yield


@pytest.mark.parametrize("env", CLIENTS)
def test_killed_clients_leave_nothing_behind(env):
    clients = CLIENTS[env]
    order = Order(scripts(env, "easy_test", 8, range(2, 8)), finished=9, abandoned=1)
    with started(serve_command(env, "--split", "easy_test", "--idle", "1", "--hosts", "1")) as server:
        found = soak(server, order, clients)
    assert found.start is not None and found.end is not None
    assert (found.episodes, found.abandoned, found.solved) == (10 * clients, clients, 9 * clients)
    opened = 10 * (clients + 1)
    assert (found.stats["open_sessions"], found.stats["pool_sessions"], found.stats["pool_opened"]) == (0, 0, opened)
    assert (found.end.files, found.end.threads, found.end.processes) == (
        found.start.files,
        found.start.threads,
        found.start.processes,
    ), str(found)
