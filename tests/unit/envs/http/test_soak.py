"""Test that killed clients leak no sessions, files, threads or processes; `make soak` runs the long version."""

from collections.abc import Iterator

import pytest

from tests.support.corpus import embedded_corpus
from tests.support.scripts import scripts
from tests.support.served import serve_command, started
from tests.support.soaking import Workload, soak

CLIENTS = {"textcraft": (3, 9), "scienceworld": (1, 2)}
"""Number of clients, and of episodes that each finishes before it abandons one; `make soak` has all environments."""


@pytest.fixture(scope="module", autouse=True)
def corpus() -> Iterator[None]:
    with embedded_corpus():
        yield


@pytest.mark.parametrize("env", CLIENTS)
def test_killed_clients_leak_no_resources(env):
    clients, finished = CLIENTS[env]
    workload = Workload(scripts(env, "easy_test", 8, range(2, 8)), finished=finished, abandoned=1)
    with started(serve_command(env, "--split", "easy_test", "--idle", "4", "--hosts", "1")) as server:
        result = soak(server, workload, clients)
    assert result.start is not None and result.end is not None
    assert (result.episodes, result.abandoned, result.solved) == ((finished + 1) * clients, clients, finished * clients)
    opened = (finished + 1) * (clients + 1)
    assert (result.stats["open_sessions"], result.stats["pool_sessions"], result.stats["pool_opened"]) == (0, 0, opened)
    assert (result.end.files, result.end.threads, result.end.processes) == (
        result.start.files,
        result.start.threads,
        result.start.processes,
    ), str(result)
