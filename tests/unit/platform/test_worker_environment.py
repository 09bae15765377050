"""Environment variables of a run's processes, and how libgomp reads them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os
from verl_agent.platform.worker_environment import thread_waiting, worker_environment
from pathlib import Path
own = worker_environment(Path("run"))
print(thread_waiting().get("GOMP_SPINCOUNT"), own.get("GOMP_SPINCOUNT"), own.get("RAY_worker_niceness"))
"""


def variables(**chosen: str) -> list[str]:
    """Return spin rounds of a command, spin rounds and niceness of a run, where a user has set `chosen`."""
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "RAY_worker_niceness")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    environment = clean | {"VERL_PLATFORM": "cpu"} | chosen
    return subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, ["1000", "1000", "0"]),
        ({"GOMP_SPINCOUNT": "7"}, ["None", "None", "0"]),
        ({"OMP_WAIT_POLICY": "active"}, ["None", "None", "0"]),
        ({"RAY_worker_niceness": "5"}, ["1000", "1000", "5"]),
    ],
)
def test_threads_wait_shortly_and_workers_are_not_nice_unless_the_user_chose(chosen, expected):
    assert variables(**chosen) == expected


def test_the_commands_of_recipes_set_the_policy_before_torch_is_imported():
    code = """
import os, sys
from verl_agent.commands import sft
import verl_agent.commands.hydra_main as start
sys.argv[1:] = ["--nonsense"]
try:
    start.run_recipe(lambda config: None, "agent_sft")
except SystemExit:
    pass
print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
"""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    found = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, cwd=Path.cwd())
    assert found.stdout.split()[-2:] == ["1000", "False"], found.stderr


def test_libgomp_takes_the_rounds_from_the_variable():
    """The library prints with OMP_DISPLAY_ENV the values that it has read."""
    code = "import ctypes, glob, os, sys; import importlib.util as u; \
folder = os.path.dirname(u.find_spec('torch').origin); \
[ctypes.CDLL(path) for path in glob.glob(folder + '/lib/libgomp*.so*')]"
    environment = os.environ | {"GOMP_SPINCOUNT": "1000", "OMP_DISPLAY_ENV": "verbose"}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    if "OMP_DISPLAY_ENV" not in shown.stderr and "OPENMP DISPLAY" not in shown.stderr:
        pytest.skip("torch of this environment does not bring libgomp")
    assert "GOMP_SPINCOUNT = '1000'" in shown.stderr
