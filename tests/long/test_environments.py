"""The environments in full: thousands of episodes, every oracle, ten thousand fuzzed actions. `make soak`.

Prints a line of figures for each.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter

import pytest

from env_adapters.webarena.sites.served.copies import VISITOR
from tests.bench.web_sessions import main, shop
from tests.support.corpus import embedded_corpus
from tests.support.environments import KNOWN
from tests.support.fuzzing import annoy, fuzz
from tests.support.oracles import try_oracle
from tests.support.scripts import scripts, spread
from tests.support.served import serve_command, started
from tests.support.soaking import Order, soak
from tests.support.web import needs_chromium
from verl_agent.envs.registry import make_env

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

EPISODES = {"textcraft": 20_000, "babyai": 5_000, "deepsearch": 5_000, "scienceworld": 1_000}
CLIENTS = 20
"""Of which each plays a twentieth of the episodes, and leaves a tenth of these."""
MAX_GROWTH = 0.05
"""Part by which memory may grow after the first tenth of the episodes."""
MAX_GROWTH_MB = 8.0
WEB_EPISODES = 2_000
WEB_SESSIONS = 16
FUZZED = 10_000


def say(figures: str) -> None:
    """Show a line of figures, below what pytest shows."""
    sys.stdout.write(f"\n{figures}\n")


@pytest.fixture(scope="module", autouse=True)
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with embedded_corpus(tmp_path_factory.mktemp("cache")):
        yield


@pytest.mark.parametrize("env", EPISODES)
def test_nothing_leaks(env):
    each = EPISODES[env] // CLIENTS
    played = scripts(env, "test", 40, range(3, 10) if env != "deepsearch" else range(1, 10))
    order = Order(played, each - each // 10, each // 10)
    with started(serve_command(env, "--split", "test", "--idle", "3")) as server:
        found = soak(server, order, CLIENTS)
    say(f"{env}: {found}")
    assert found.start is not None and found.end is not None
    assert (found.episodes, found.solved) == (EPISODES[env], CLIENTS * order.finished)
    assert found.stats["open_sessions"] == found.stats["pool_sessions"] == found.stats["pool_env_errors"] == 0
    assert (found.end.files, found.end.processes) == (found.start.files, found.start.processes)
    assert found.end.threads == found.start.threads
    assert found.most_mb <= max(found.tenth_mb * (1 + MAX_GROWTH), found.tenth_mb + MAX_GROWTH_MB)


@needs_chromium
def test_browsers_leave_nothing_behind(sites, monkeypatch):
    """A browser is replaced each few hundred episodes, so the last one is not the first, and is compared at rest.

    What lives as long as the process keeps the room that it once needed, so its second half is compared with its first.
    """
    monkeypatch.setenv("VERL_AGENT_SITES", str(sites.home.folder))
    with shop() as work:
        found = asyncio.run(main(WEB_SESSIONS, WEB_EPISODES, 2, work))
    say(f"webarena: {found}")
    first, last = found["idle at first"], found["idle at last"]
    assert found["errors"] == [0]
    assert last["processes"] <= first["processes"]
    assert last["handles"] <= first["handles"] + 2
    assert last["browser"] <= first["browser"] * (1 + MAX_GROWTH) + MAX_GROWTH_MB
    warm = sorted(found["samples"], key=itemgetter("episode"))[1:]
    half = len(warm) // 2
    for part in ("python", "driver", "sites"):
        early, late = (max(sample[part] for sample in samples) for samples in (warm[:half], warm[half:]))
        assert late <= early * (1 + MAX_GROWTH) + MAX_GROWTH_MB, part
    assert not [copy for copy in sites.home.copies.iterdir() if copy.name != VISITOR]


def of_each(env: str, split: str, count: int, key: str) -> list[int]:
    """Places of `count` items of each kind, evenly from all of that kind."""
    places = defaultdict(list)
    for place, item in enumerate(make_env(env).tasks(split)):
        places[item.data[key]].append(place)
    return [kind[at] for kind in places.values() for at in spread(kind, count)]


@pytest.mark.parametrize(
    ("env", "split", "each", "wanted"),
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
def test_the_oracles_solve_through_http(env, split, each, wanted):
    places = of_each(env, split, each[1], each[0]) if each else None
    with started(serve_command(env, "--split", split)) as server:
        tried = try_oracle(env, split, server.url, places)
    say(f"{env} {split}: {tried}")
    assert tried.rate >= wanted, str(tried)
    assert not any("KeyInBox" in one for one in tried.failed)


@pytest.mark.parametrize("env", KNOWN)
def test_fuzzed_actions_end_in_a_bounded_observation(env):
    known, session = KNOWN[env], make_env(env)
    actions = list(fuzz(0, FUZZED, known.words))
    actions[1::2] = [known.wrap.format(action) for action in actions[1::2]]
    seen = asyncio.run(annoy(session, session.tasks(known.split)[known.item], iter(actions)))
    say(f"{env}: {dict(seen)}")
    assert seen["actions"] == FUZZED
