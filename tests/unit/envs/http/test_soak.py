"""Test that killed clients leak no sessions, files, threads or processes; `make soak` runs the long version."""

from collections.abc import Iterator

import pytest

from tests.support.corpus import embedded_corpus
from tests.support.scripts import scripts
from tests.support.served import serve_command, started
from tests.support.soaking import Workload, soak

CLIENTS = {"textcraft": 3, "babyai": 3, "deepsearch": 3, "scienceworld": 1}
"""Number of clients; each finishes nine episodes and abandons one."""


@pytest.fixture(scope="module", autouse=True)
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with embedded_corpus(tmp_path_factory.mktemp("cache")):
        yield


@pytest.mark.parametrize("env", CLIENTS)
def test_killed_clients_leak_no_resources(env):
    clients = CLIENTS[env]
    workload = Workload(scripts(env, "easy_test", 8, range(2, 8)), finished=9, abandoned=1)
    with started(serve_command(env, "--split", "easy_test", "--idle", "4", "--hosts", "1")) as server:
        result = soak(server, workload, clients)
    assert result.start is not None and result.end is not None
    assert (result.episodes, result.abandoned, result.solved) == (10 * clients, clients, 9 * clients)
    opened = 10 * (clients + 1)
    assert (result.stats["open_sessions"], result.stats["pool_sessions"], result.stats["pool_opened"]) == (0, 0, opened)
    assert (result.end.files, result.end.threads, result.end.processes) == (
        result.start.files,
        result.start.threads,
        result.start.processes,
    ), str(result)
