"""Test that the files and names in docs/explanations/episode-to-gradient.md exist."""

import re

import pytest

from tests import ROOT

LIBRARY = ROOT / "verl_agent"
GUIDE = (ROOT / "docs" / "explanations" / "episode-to-gradient.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \.\.\. .* \| `(\S+)` \| `(\w+)` \|$", GUIDE, re.MULTILINE)


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`([\w/]+\.py)`", GUIDE))))
def test_file_of_the_guide_exists(file):
    assert (LIBRARY / file).is_file()


@pytest.mark.parametrize(("file", "name"), ROWS)
def test_name_of_the_guide_is_defined_in_its_file(file, name):
    definition = rf"^\s*(?:(?:async )?def|class) {name}\b|^{name}(?:: .+)? = "
    assert re.search(definition, (LIBRARY / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_names_in_the_walk_are_defined_in_the_library():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in LIBRARY.rglob("*.py"))
    names = {part for name in re.findall(r"`([A-Z]\w+(?:\.\w+)?|\w+_\w+)`", GUIDE) for part in name.split(".")}
    columns = {"max_turns"}
    assert [
        name for name in sorted(names - columns) if not re.search(rf"\b(def|class) {name}\b|^{name}\b", sources, re.M)
    ] == []
    assert 10 <= len(ROWS) <= 20
