"""Sites that show another world are refused, and two processes that start the same sites wait for each other."""

import asyncio
import fcntl
import json
import threading
import time

import pytest

from env_adapters.webarena.sites import control
from env_adapters.webarena.sites.folders import Home, code_key
from env_adapters.webarena.sites.supervisor import hold
from env_adapters.webarena.sites.world import DEFAULT_SEED
from env_adapters.webarena.tasks.embedded import EmbeddedTasks
from verl_agent.errors import ConfigError

PORTS = {"shop": 7770, "forum": 7771, "code": 7772}
STATE = {"pid": 1, "ports": PORTS, "seed": DEFAULT_SEED, "code": code_key()}


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path / "sites")
    made.copies.mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 7}, f"started with the seed 7, and {DEFAULT_SEED} is wanted"),
        ({"code": "0123456789ab"}, f"started with the code 0123456789ab, and {code_key()} is wanted"),
        ({"code": None}, f"started with the code older, and {code_key()} is wanted"),
    ],
)
def test_sites_of_another_world_are_played_by_no_episode_and_left_alone_by_up(home, changed, said):
    state = {key: value for key, value in (STATE | changed).items() if value is not None}
    home.state.write_text(json.dumps(state))
    source = EmbeddedTasks(home.folder)
    with home.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the process that looks after the sites does
        for start in (
            lambda: asyncio.run(source.open(source.items("test")[0])),
            lambda: control.up(home, DEFAULT_SEED, 0, print),
        ):
            with pytest.raises(ConfigError, match=f"{said}.*verl-agent sites down, then verl-agent sites up"):
                start()
    assert not list(home.copies.iterdir())


def test_sites_of_this_world_are_played(home):
    home.state.write_text(json.dumps(STATE))
    source = EmbeddedTasks(home.folder)
    opened = asyncio.run(source.open(source.items("test")[0]))
    assert opened.routes
    opened.release()


def test_who_starts_the_same_sites_waits_for_the_other(home):
    seen, said = [], []
    inside = threading.Event()

    def first():
        with control.alone(home, said.append):
            inside.set()
            time.sleep(0.3)
            seen.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait()
    with control.alone(home, said.append):
        seen.append("second")
    thread.join()
    assert seen == ["first", "second"] and said == ["waiting for another process that starts these sites"]


def test_asking_whether_sites_run_is_no_obstacle_to_others(home):
    home.lock.touch()
    with home.lock.open("a") as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)  # somebody else asks
        assert not control.looked_after(home)
        threading.Timer(0.2, fcntl.flock, (asked, fcntl.LOCK_UN)).start()
        with home.lock.open("a") as lock:
            assert hold(lock)
            assert control.looked_after(home)
            with home.lock.open("a") as other:
                assert not hold(other)
