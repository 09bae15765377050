"""Environment variables of a run's processes, and how libgomp reads them."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests import ROOT
from verl_agent.platform.worker_environment import POLICY_ROUNDS

OURS = (
    *("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "VERL_AGENT_OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"),
    *("RAY_worker_niceness", "VLLM_CPU_NUM_OF_RESERVED_CPU"),
)
CODE = """
import json, os, sys
from pathlib import Path
from verl_agent.commands import sft
from verl_agent.commands.hydra_main import run_recipe
from verl_agent.platform.worker_environment import worker_environment
def show(config):
    assert "torch" not in sys.modules
    in_run = dict(os.environ)
    print(json.dumps([in_run, *(dict(worker_environment(Path("run"), ranks)) for ranks in (1, 2))]))
sys.argv[1:] = ["--config-dir", sys.argv[1], "--config-name", "eval_cpu"]
run_recipe(show, "agent_eval")
"""
RECIPES = ROOT / "recipes/guess_number"
CORES = len(os.sched_getaffinity(0))


def run(code: str, *arguments: str, **chosen: str) -> Any:
    """Return the JSON that a program prints, where a user's shell has set `chosen` and none of our other variables."""
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    environment = clean | {"VERL_PLATFORM": "cpu"} | chosen
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "1000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "30000000000"}),
        ({"OMP_WAIT_POLICY": " PASSIVE "}, {"OMP_WAIT_POLICY": " PASSIVE ", "GOMP_SPINCOUNT": "0"}),
        (
            {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "7"},
            {"GOMP_SPINCOUNT": "7", "OMP_WAIT_POLICY": "active"},
        ),
    ],
)
def test_the_policy_of_threads_is_set_before_torch_is_imported_and_reaches_all_workers(chosen, expected):
    """Workers of a Ray that runs already do not inherit the variables of this process."""
    for variables in run(CODE, str(RECIPES), **chosen):
        assert {name: variables[name] for name in OURS[:2] if name in variables} == expected


def test_values_of_the_users_shell_win_and_else_ranks_share_the_cores():
    chosen = {"RAY_worker_niceness": "5", "VLLM_CPU_NUM_OF_RESERVED_CPU": "1", "OMP_NUM_THREADS": "3"}
    _, *given = run(CODE, str(RECIPES), **chosen)
    assert [{name: one[name] for name in chosen} for one in given] == [chosen, chosen]
    _, *default = run(CODE, str(RECIPES))
    assert [one["OMP_NUM_THREADS"] for one in default] == [str(CORES), str(max(1, CORES // 2))]
    assert {(one["RAY_worker_niceness"], one["VLLM_CPU_NUM_OF_RESERVED_CPU"]) for one in default} == {("0", "0")}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, str(CORES)),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "1"}, str(CORES)),
        ({"OMP_NUM_THREADS": "9"}, "9"),
    ],
)
def test_threads_that_a_run_or_torchrun_has_set_are_not_those_of_the_user(chosen, expected):
    """Training on many ranks gives each a part of the cores; an evaluation in the same process or a child has all."""
    code = """
import json, os
from pathlib import Path
from verl_agent.platform.worker_environment import worker_environment
os.environ |= worker_environment(Path("run"), 1000)
print(json.dumps(worker_environment(Path("run"))["OMP_NUM_THREADS"]))
"""
    assert run(code, **chosen) == expected


def test_a_process_on_a_gpu_keeps_the_default_policy():
    code = """
import json
from verl_agent.platform.worker_environment import thread_waiting
print(json.dumps(thread_waiting()))
"""
    assert run(code, VERL_PLATFORM="cuda") == {}


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"OMP_WAIT_POLICY": "passive"}, {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}),
        ({"GOMP_SPINCOUNT": 9}, {"GOMP_SPINCOUNT": "9"}),
        ({"GOMP_SPINCOUNT": None}, {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "7"}),
        ({}, {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "7"}),
    ],
)
def test_a_recipes_policy_replaces_that_of_the_shell_and_null_chooses_none(recipe, expected):
    code = """
import json, os, sys
from verl_agent.platform.worker_environment import set_thread_waiting
set_thread_waiting(json.loads(sys.argv[1]))
print(json.dumps({name: os.environ[name] for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY") if name in os.environ}))
"""
    assert run(code, json.dumps(recipe), GOMP_SPINCOUNT="7", OMP_WAIT_POLICY="active") == expected


def read_by_libgomp(**variables: str) -> str:
    """Return what torch's libgomp prints with OMP_DISPLAY_ENV: the values that it has read."""
    code = "import ctypes, glob, os, sys; import importlib.util as u; \
folder = os.path.dirname(u.find_spec('torch').origin); \
[ctypes.CDLL(path) for path in glob.glob(folder + '/lib/libgomp*.so*')]"
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    environment = clean | variables | {"OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    if "OMP_DISPLAY_ENV" not in done.stderr and "OPENMP DISPLAY" not in done.stderr:
        pytest.skip("torch of this environment does not bring libgomp")
    return done.stderr


def test_libgomp_takes_the_rounds_from_the_variable():
    assert "GOMP_SPINCOUNT = '1000'" in read_by_libgomp(GOMP_SPINCOUNT="1000")


@pytest.mark.parametrize("policy", list(POLICY_ROUNDS))
def test_the_rounds_of_a_policy_are_those_of_libgomp(policy):
    assert f"GOMP_SPINCOUNT = '{POLICY_ROUNDS[policy]}'" in read_by_libgomp(OMP_WAIT_POLICY=policy)
