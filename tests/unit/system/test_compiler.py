"""Test the trial of the C++ compiler, with the real one and with small scripts in its place."""

import shutil
import sysconfig
from pathlib import Path

import pytest

from verl_agent.system.compiler import compilation_variables, compiler_error

PREFIX = "/environment"
"""Folder of an environment without a space, wherever these tests run."""


@pytest.fixture
def real_compiler(monkeypatch):
    """Skip the test on a machine without root, which may have no compiler or no headers; see `make setup ROOT=no`."""
    monkeypatch.delenv("CXX", raising=False)
    if not shutil.which("g++") or not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("g++ or Python.h is missing")


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Return a function that makes a script the compiler."""

    def use(script):
        file = tmp_path / "c++"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("CXX", str(file))

    return use


def test_a_working_compiler_passes(real_compiler):
    assert compiler_error(prefix=PREFIX) is None


def test_a_compiler_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiler_error(prefix=PREFIX) == "'no-such-compiler' cannot be started: No such file or directory"


def test_missing_headers_are_named_by_the_compiler_itself(real_compiler, compiler):
    compiler(
        f'for flag; do shift; case $flag in -I*) ;; *) set -- "$@" "$flag";; esac; done; {shutil.which("g++")} "$@"'
    )
    assert "Python.h" in (compiler_error(prefix=PREFIX) or "")


def test_a_library_that_cannot_be_loaded_is_an_error(compiler):
    compiler('while [ "$1" != -o ]; do shift; done; echo no library > "$2"')
    assert "ImportError" in (compiler_error(prefix=PREFIX) or "")


def test_a_silent_failure_has_its_status_as_the_reason(compiler):
    compiler("exit 3")
    assert (compiler_error(prefix=PREFIX) or "").endswith("ended with status 3")


def test_a_compiler_that_hangs_is_an_error(compiler):
    compiler("exec sleep 60")
    assert "did not end within 0 s" in (compiler_error(timeout_s=0.2, prefix=PREFIX) or "")


def test_a_run_without_a_compiler_turns_compilation_off_and_says_so(compiler, monkeypatch):
    compiler("echo 'trial.cpp:1: fatal error: Python.h'; exit 1")
    said: list[str] = []
    assert compilation_variables(said.append, PREFIX) == {"TORCH_COMPILE_DISABLE": "1"}
    assert len(said) == 1 and "fatal error: Python.h" in said[0]
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # the user decided
    assert compilation_variables(said.append, PREFIX) == {}
    assert len(said) == 1


def test_a_run_with_a_compiler_sets_nothing(real_compiler):
    assert compilation_variables(prefix=PREFIX) == {}


def test_a_folder_with_a_space_is_an_error(compiler):
    compiler("exit 0")
    assert "/home/u/my projects/.venv" in (compiler_error(prefix="/home/u/my projects/.venv") or "")
