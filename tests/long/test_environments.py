"""Tests of whole environments: thousands of episodes, every oracle, ten thousand fuzzed actions. `make soak` runs them.

Each test prints a line of figures.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import pytest

from env_adapters.web_sites.served.copies import VISITOR
from tests.bench.web_sessions import main, shop
from tests.support.corpus import embedded_corpus
from tests.support.environments import KNOWN
from tests.support.fuzzing import play_fuzzed
from tests.support.scripts import actions, scripts, spread
from tests.support.served import serve_command, started
from tests.support.soaking import Workload, soak
from tests.support.web import needs_chromium
from tests.support.wire_client import Script, Session
from verl_agent.envs.registry import make_env

CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class OracleResult:
    """Result of the episodes of demonstrations.

    Attributes:
        solved: ids of the solved items.
        failed: ids of the other items, each with its score or the reason why it was not played.
    """

    solved: Sequence[str]
    failed: Sequence[str]

    @property
    def rate(self) -> float:
        return len(self.solved) / (len(self.solved) + len(self.failed))

    def __str__(self) -> str:
        total = len(self.solved) + len(self.failed)
        return f"{len(self.solved)}/{total} solved" + "".join(f"; {item}" for item in self.failed[:10])


def try_oracle(env: str, split: str, url: str, indices: Iterable[int] | None = None) -> OracleResult:
    """Play the demonstrations of `env` on a server."""
    session = make_env(env)
    items = session.tasks(split)
    chosen = range(len(items)) if indices is None else indices
    scripts = [Script(index, actions(session, items[index])) for index in chosen]
    scores = asyncio.run(_play_all(url, [script for script in scripts if script.actions]))
    solved = [items[index].id for index, score in scores.items() if score >= session.success_reward]
    failed = [f"{items[index].id} {score}" for index, score in scores.items() if score < session.success_reward]
    failed += [f"{items[script.item].id} has no demonstration" for script in scripts if not script.actions]
    return OracleResult(solved, failed)


async def _play_all(url: str, scripts: Sequence[Script]) -> dict[int, float]:
    """Return the score of each script's item; 0 if the episode did not end."""
    scores: dict[int, float] = {}
    left = iter(scripts)

    async def play() -> None:
        session = await Session.open(url)
        for script in left:
            await session.reset(script.item)
            answers = [await session.step(action) for action in script.actions]
            scores[script.item] = answers[-1]["score"] if answers[-1]["done"] else 0.0
        await session.close()

    await asyncio.gather(*(play() for _ in range(min(CONCURRENCY, len(scripts)))))
    return scores


pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

EPISODES = {"textcraft": 20_000, "babyai": 5_000, "deepsearch": 5_000, "scienceworld": 1_000}
CLIENTS = 20
"""Number of clients; each plays an equal share of the episodes and abandons a tenth of them."""
MAX_GROWTH = 0.05
"""Share by which memory may grow after the first tenth of the episodes."""
MAX_GROWTH_MB = 8.0
WEB_EPISODES = 2_000
WEB_SESSIONS = 16
FUZZED = 10_000


def report(figures: str) -> None:
    """Print a line of figures below the output of pytest."""
    sys.stdout.write(f"\n{figures}\n")


@pytest.fixture(scope="module", autouse=True)
def corpus() -> Iterator[None]:
    with embedded_corpus():
        yield


@pytest.mark.parametrize("env", EPISODES)
def test_server_leaks_no_session_file_process_thread_or_memory(env):
    each = EPISODES[env] // CLIENTS
    played = scripts(env, "test", 40, range(3, 10) if env != "deepsearch" else range(1, 10))
    workload = Workload(played, each - each // 10, each // 10)
    with started(serve_command(env, "--split", "test", "--idle", "3")) as server:
        usage = soak(server, workload, CLIENTS)
    report(f"{env}: {usage}")
    assert usage.start is not None and usage.end is not None
    assert (usage.episodes, usage.solved) == (EPISODES[env], CLIENTS * workload.finished)
    assert usage.stats["open_sessions"] == usage.stats["pool_sessions"] == usage.stats["pool_env_errors"] == 0
    assert (usage.end.files, usage.end.processes) == (usage.start.files, usage.start.processes)
    assert usage.end.threads == usage.start.threads
    assert usage.most_mb <= max(usage.tenth_mb * (1 + MAX_GROWTH), usage.tenth_mb + MAX_GROWTH_MB)


@needs_chromium
def test_browsers_leak_no_process_handle_memory_or_copy(sites, monkeypatch):
    """Browsers are replaced every few hundred episodes: the test compares an idle one of the end with one of the start.

    The memory of long-lived processes never shrinks, so the second half of the run is compared with the first.
    """
    monkeypatch.setenv("VERL_AGENT_SITES", str(sites.home.folder))
    with shop() as work:
        usage = asyncio.run(main(WEB_SESSIONS, WEB_EPISODES, 2, work))
    report(f"webarena: {usage}")
    first, last = usage["idle at first"], usage["idle at last"]
    assert usage["errors"] == [0]
    assert last["processes"] <= first["processes"]
    assert last["handles"] <= first["handles"] + 2
    assert last["browser"] <= first["browser"] * (1 + MAX_GROWTH) + MAX_GROWTH_MB
    warm = sorted(usage["samples"], key=itemgetter("episode"))[1:]
    half = len(warm) // 2
    for component in ("python", "driver", "sites"):
        early, late = (max(sample[component] for sample in samples) for samples in (warm[:half], warm[half:]))
        assert late <= early * (1 + MAX_GROWTH) + MAX_GROWTH_MB, component
    assert not [copy for copy in sites.home.copies.iterdir() if copy.name != VISITOR]


def of_each(env: str, split: str, count: int, key: str) -> list[int]:
    """Return the indices of `count` items of each kind, evenly spread over the items of that kind."""
    indices = defaultdict(list)
    for index, item in enumerate(make_env(env).tasks(split)):
        indices[item.data[key]].append(index)
    return [kind[at] for kind in indices.values() for at in spread(kind, count)]


@pytest.mark.parametrize(
    ("env", "split", "each", "min_rate"),
    [
        ("textcraft", "train", None, 1.0),
        ("textcraft", "test", None, 1.0),
        ("babyai", "train", ("level", 10), 0.95),
        ("babyai", "test", None, 0.95),
        ("scienceworld", "train", ("task", 2), 1.0),
        ("scienceworld", "test", ("task", 2), 1.0),
        ("deepsearch", "train", None, 1.0),
        ("deepsearch", "test", None, 1.0),
    ],
)
def test_oracle_solves_tasks_through_http(env, split, each, min_rate):
    indices = of_each(env, split, each[1], each[0]) if each else None
    with started(serve_command(env, "--split", split)) as server:
        tried = try_oracle(env, split, server.url, indices)
    report(f"{env} {split}: {tried}")
    assert tried.rate >= min_rate, str(tried)
    assert not any("KeyInBox" in one for one in tried.failed)


@pytest.mark.parametrize("env", KNOWN)
def test_fuzzed_actions_return_bounded_observations(env):
    seen = play_fuzzed(env, 0, FUZZED)
    report(f"{env}: {dict(seen)}")
    assert seen["actions"] == FUZZED
