"""Tests that sites of another seed or code are rejected and that processes start the same sites one after the other."""

import asyncio
import fcntl
import json
import threading
import time

import pytest

from env_adapters.web_sites import control
from env_adapters.web_sites.folders import Home, code_key
from env_adapters.web_sites.source import EmbeddedTasks
from env_adapters.web_sites.supervisor import acquire
from env_adapters.web_sites.world import DEFAULT_SEED
from verl_agent.envs.machine.locks import FileLock
from verl_agent.errors import ConfigError

PORTS = {"shop": 7770, "forum": 7771, "code": 7772}
STATE = {"pid": 1, "ports": PORTS, "seed": DEFAULT_SEED, "code": code_key()}


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path / "sites")
    home.copies.mkdir(parents=True)
    return home


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 7}, f"started with the seed 7, but {DEFAULT_SEED} is required"),
        ({"code": "0123456789ab"}, f"started with the code 0123456789ab, but {code_key()} is required"),
        ({"code": None}, f"started with the code older, but {code_key()} is required"),
    ],
)
def test_sites_of_another_seed_or_code_raise_config_error(home, changed, message):
    state = {key: value for key, value in (STATE | changed).items() if value is not None}
    home.state.write_text(json.dumps(state))
    source = EmbeddedTasks(home.folder)
    with home.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the supervisor does
        for start in (
            lambda: asyncio.run(source.open(source.items("test")[0])),
            lambda: control.start_sites(home, DEFAULT_SEED, 0, print),
        ):
            with pytest.raises(ConfigError, match=f"{message}.*verl-agent sites down, then verl-agent sites up"):
                start()
    assert not list(home.copies.iterdir())


def test_sites_of_the_current_seed_and_code_are_opened(home):
    home.state.write_text(json.dumps(STATE))
    source = EmbeddedTasks(home.folder)
    environment = asyncio.run(source.open(source.items("test")[0]))
    assert environment.routes
    environment.release()


def test_second_start_of_the_same_sites_waits(home):
    order, progress = [], []
    inside = threading.Event()

    def first():
        with control.exclusive_start(home, progress.append):
            inside.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait()
    with control.exclusive_start(home, progress.append):
        order.append("second")
    thread.join()
    assert order == ["first", "second"] and progress == ["waiting for another process that starts these sites"]


def test_check_for_a_supervisor_does_not_block_its_start(home):
    home.lock.touch()
    with home.lock.open("a") as check:
        fcntl.flock(check, fcntl.LOCK_SH)  # another process checks for a supervisor
        assert not control.has_supervisor(home)
        threading.Timer(0.2, fcntl.flock, (check, fcntl.LOCK_UN)).start()
        lock = FileLock(home.lock)
        assert acquire(lock)
        assert control.has_supervisor(home)
        assert not acquire(FileLock(home.lock))
        lock.release()
