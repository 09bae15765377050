"""Test the check of a machine that precedes the first download."""

import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "requirements" / "check_machine.sh"


def executable(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def check(python: Path | str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the check with the commands of one folder."""
    if not (path / "id").exists():
        (path / "id").symlink_to(shutil.which("id") or "")
    command = [shutil.which("bash") or "", str(SCRIPT), str(python)]
    return subprocess.run(
        command, env={"PATH": str(path), **variables}, capture_output=True, text=True, timeout=60, check=False
    )


def test_all_that_is_missing_is_named_at_once_with_one_command(tmp_path):
    executable(tmp_path / "apt-get", "exit 1")
    python = executable(tmp_path / "python", "[[ $2 == *version_info* ]] && echo 3.11 || exit 1")
    checked = check(python, tmp_path)
    assert checked.returncode == 1
    for name in ("venv", "Python.h", "C++ compiler", "libnuma.so.1"):
        assert name in checked.stderr
    assert "apt-get install python3.11-venv python3.11-dev g++ libnuma1\n" in checked.stderr


def test_another_compiler_counts_only_if_cxx_names_it(tmp_path):
    executable(tmp_path / "clang++", "exit 0")
    python = executable(tmp_path / "python", "echo 3.11")
    assert "C++ compiler" in check(python, tmp_path).stderr
    assert check(python, tmp_path, CXX="clang++ -v").returncode == 0


def test_only_what_is_missing_is_named(tmp_path):
    executable(tmp_path / "dnf", "exit 1")
    executable(tmp_path / "g++", "exit 0")
    python = executable(
        tmp_path / "python",
        f'[[ $2 == *libnuma* ]] && exit 1; [[ $2 == *Python.h* ]] && exit 0; exec {sys.executable} "$@"',
    )
    checked = check(python, tmp_path)
    assert checked.returncode == 1
    assert "\n  libnuma.so.1\n" in checked.stderr
    assert checked.stderr.endswith("dnf install numactl-libs\n")
    for name in ("venv", "Python.h", "C++ compiler"):
        assert name not in checked.stderr
