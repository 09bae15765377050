"""Start of Ray's workers: from a path with a space, and on a machine where none can start."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, time
import ray
from verl_agent.training.actor_watch import WorkerStart
from verl_agent.training.verl_config import quoted_python

class Actor:
    def executable(self):
        return sys.executable

class SlowImport:  # imported for a time by the process of the actor
    def __reduce__(self):
        return time.sleep, (float(sys.argv[2]),)

Actor.needs = SlowImport()
environment = {"env_vars": {"SOME": "1"}, "py_executable": quoted_python()}  # Ray needs no shell without variables
ray.init(num_cpus=1, object_store_memory=10**8, include_dashboard=False, runtime_env=environment)
start, actor = WorkerStart(limit_s=float(sys.argv[1])), ray.remote(Actor).remote()
answer = actor.executable.remote()
while not ray.wait([answer], timeout=0.5)[0]:
    if (death := start.failure()) is not None:
        print("death:", death.name, death.cause, flush=True)
        os._exit(0)
print("worker:", ray.get(answer), start.failure())
"""


def run(python: Path, path: str, limit_s: int, import_s: int = 0) -> str:
    """Run the program, whose actor takes `import_s` seconds to import, and return its last line."""
    command = [str(python), "-c", PROGRAM, str(limit_s), str(import_s)]
    ended = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=100)
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("death:", "worker:"))]
    assert lines, ended.stderr[-5000:]
    return lines[-1]


def test_workers_start_from_a_path_with_a_space(tmp_path):
    folder = tmp_path / "my projects"
    folder.symlink_to(sys.prefix)
    python = folder / "bin" / "python"
    assert run(python, os.environ["PATH"], limit_s=120) == f"worker: {python} None"


def test_a_worker_that_imports_for_longer_than_the_limit_has_started():
    assert run(Path(sys.executable), os.environ["PATH"], limit_s=10, import_s=13) == f"worker: {sys.executable} None"


def test_a_ray_that_starts_no_worker_is_reported(tmp_path):
    shell = tmp_path / "bash"  # by which Ray starts workers
    shell.write_text("#!/bin/sh\nexit 3\n")
    shell.chmod(0o755)
    line = run(Path(sys.executable), f"{tmp_path}:{os.environ['PATH']}", limit_s=5)
    assert line == "death: Ray's node manager (raylet) started no worker within 5 s"
