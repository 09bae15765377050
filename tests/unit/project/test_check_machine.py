"""Test the check of a machine that precedes the first download, and the choice of the interpreter."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from verl_agent.system.compiler import compiler_error

REQUIREMENTS = ROOT / "requirements"
TOOLS = ("awk", "df", "dirname", "id", "uname")
PYTHON_3_11 = "[[ $2 == *version_info* ]] && echo 3.11 || exit 1"
UV = "curl -LsSf https://astral.sh/uv/install.sh | sh"


def executable(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path):
    """Return a folder with the commands of a machine: at first those that every system has, and apt."""
    for name in TOOLS:
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    executable(tmp_path / "apt-get", "exit 1")
    return tmp_path


def run(script: str, machine: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script of `requirements/` with the commands of one machine."""
    command = [shutil.which("bash") or "", str(REQUIREMENTS / script), *map(str, arguments)]
    environment = {"PATH": str(machine), "HOME": str(machine), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def check(machine: Path, python: object, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the check of a machine whose environment exists, so that the disk of the test's machine does not matter."""
    return run("check_machine.sh", machine, python, *(arguments or [machine]), **variables)


def answering(machine: Path, name: str, text: str) -> Path:
    """Replace a tool of the machine by one with this output."""
    (machine / name).unlink(missing_ok=True)
    return executable(machine / name, f"printf '%s\\n' '{text}'")


def test_all_that_is_missing_is_named_at_once_with_one_command(machine):
    checked = check(machine, executable(machine / "python", PYTHON_3_11))
    assert checked.returncode == 1
    for name in ("venv", "Python.h", "C++ compiler", "libnuma.so.1"):
        assert name in checked.stderr
    assert "apt-get install python3.11-venv python3.11-dev g++ libnuma1\n" in checked.stderr
    assert "ROOT=no" in checked.stderr


def test_another_compiler_counts_only_if_cxx_names_it_as_one_word(machine):
    executable(machine / "clang++", "exit 0")
    python = executable(machine / "python", "echo 3.11")
    assert "C++ compiler" in check(machine, python).stderr
    assert check(machine, python, CXX="clang++").returncode == 0
    assert "C++ compiler" in check(machine, python, CXX="clang++ -v").stderr  # torch.compile would not find it


def test_only_what_is_missing_is_named(machine):
    (machine / "apt-get").rename(machine / "dnf")
    executable(machine / "g++", "exit 0")
    python = executable(
        machine / "python",
        f'case $2 in *version_info*) echo 3.11 ;; *numa*) exit 1 ;; *Python.h*) ;; *) "{sys.executable}" "$@" ;; esac',
    )
    checked = check(machine, python)
    assert checked.returncode == 1
    assert "\n  libnuma.so.1\n" in checked.stderr
    assert "dnf install numactl-libs\n" in checked.stderr
    for name in ("venv", "Python.h", "C++ compiler"):
        assert name not in checked.stderr


@pytest.mark.parametrize("version", ["3.10", "3.13", ""])
def test_an_interpreter_that_does_not_fit_is_refused_with_the_way_to_another(machine, version):
    (machine / "apt-get").unlink()
    executable(machine / "pacman", "exit 1")
    checked = check(machine, executable(machine / "python", f"echo {version}"))
    assert checked.returncode == 1
    assert "Python 3.11 (tested) or 3.12" in checked.stderr and version in checked.stderr
    assert UV in checked.stderr
    assert "python3" not in checked.stderr.split("pacman")[1]  # that system has no other version


def test_without_root_only_the_interpreter_counts(machine):
    python = executable(machine / "python", "[[ $2 == *Python.h* || $2 == *libnuma* ]] && exit 1; echo 3.11")
    assert check(machine, python, ROOT="no").returncode == 0
    checked = check(machine, executable(machine / "python", PYTHON_3_11), ROOT="no")
    assert checked.returncode == 1
    assert checked.stderr.endswith(f"\n  {UV}\n")
    assert "apt-get" not in checked.stderr


def test_too_little_disk_is_named_only_before_the_environment_exists(machine):
    answering(machine, "df", "Filesystem 1024-blocks Used Available\n/dev/x 90000000 80000000 9765630")
    python = executable(machine / "python", "echo 3.11")
    executable(machine / "g++", "exit 0")
    checked = check(machine, python, machine / "new")
    assert checked.returncode == 1
    assert "15 GB of free disk" in checked.stderr and "has 10" in checked.stderr
    assert "apt-get" not in checked.stderr
    assert check(machine, python, machine).returncode == 0


def test_little_memory_is_a_note(machine):
    executable(machine / "g++", "exit 0")
    answering(machine, "awk", "4")
    checked = check(machine, executable(machine / "python", "echo 3.11"))
    assert checked.returncode == 0
    assert "4 GB of memory" in checked.stderr


def test_another_processor_is_refused(machine):
    (machine / "uname").unlink()
    executable(machine / "uname", "[[ $1 == -s ]] && echo Linux || echo riscv64")
    checked = check(machine, executable(machine / "python", "echo 3.11"), ROOT="no")
    assert checked.returncode == 1
    assert "x86_64 or aarch64; this one is riscv64" in checked.stderr


@pytest.mark.parametrize(("system", "way"), [("Darwin", "docker run"), ("MINGW64_NT-10.0", "WSL 2")])
def test_another_system_gets_one_sentence(machine, system, way):
    answering(machine, "uname", system)
    checked = check(machine, "python3")
    assert checked.returncode == 1
    assert way in checked.stderr and checked.stderr.count("\n") == 1


def find(machine: Path) -> str:
    return run("find_python.sh", machine).stdout.strip()


def test_the_interpreter_is_a_complete_one_then_uv_then_one_that_fits(machine):
    assert find(machine) == ""
    other = executable(machine / "python3", "exit 1")
    assert find(machine) == str(other)  # the check says why it does not fit
    bare = executable(machine / "python3.12", "[[ $2 != *Python.h* ]]")
    assert find(machine) == str(bare)
    (machine / ".local/bin").mkdir(parents=True)
    uv = executable(machine / ".local/bin/uv", "exit 0")
    assert find(machine) == str(uv)
    complete = executable(machine / "python3.11", "exit 0")
    assert find(machine) == str(complete)


def test_this_machine_passes_its_own_check():
    root = "no" if compiler_error(prefix="/") else ""  # it was installed without root
    checked = run(
        "check_machine.sh", Path("/nonexistent"), sys.executable, sys.prefix, PATH=os.environ["PATH"], ROOT=root
    )
    assert checked.returncode == 0, checked.stderr
