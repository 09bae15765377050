"""Test that the pages of studies are those that docs/publish_studies.py makes from the published points."""

import pytest

from tests import ROOT
from tests.support.loading import load_script

PAGES = sorted((ROOT / "docs/results/studies").glob("*/index.md"))


@pytest.fixture(scope="module")
def writer():
    """Return the module docs/publish_studies.py."""
    return load_script(ROOT / "docs" / "publish_studies.py")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_page_of_a_study_is_short_and_made_from_its_points(page, writer):
    text = page.read_text(encoding="utf-8")
    assert text == "\n".join(writer.page(page.parent)) + "\n"
    assert len(text.split()) <= 450
    assert (page.parent / "report.txt").is_file()


def test_table_of_claims_is_made_from_the_published_points(writer):
    index = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    assert "\n".join(["", *writer.table(), ""]) in index
