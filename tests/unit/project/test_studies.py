"""Test that the pages of studies are those that docs/publish_studies.py makes from the published points."""

import json

import pytest

from tests import ROOT
from tests.support.loading import load_script

PAGES = sorted((ROOT / "docs/results/studies").glob("*/index.md"))
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)


@pytest.fixture(scope="module")
def writer():
    """Return the module docs/publish_studies.py."""
    return load_script(ROOT / "docs" / "publish_studies.py")


@EACH
def test_page_of_a_study_is_short_and_made_from_its_points(page, writer):
    text = page.read_text(encoding="utf-8")
    assert text == "\n".join(writer.page(page.parent)) + "\n"
    assert len(text.split()) <= 520
    assert (page.parent / "report.txt").is_file()


def test_table_of_claims_is_made_from_the_published_points(writer):
    index = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    assert "\n".join(["", *writer.table(), ""]) in index


def test_the_navigation_lists_the_published_studies_in_their_place(writer):
    site = (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8")
    assert site == writer.navigation(site, [page.parent.name for page in PAGES])


@EACH
def test_every_column_of_a_study_has_a_place_for_each_evaluation(page):
    runs = json.loads((page.parent / "points.json").read_text(encoding="utf-8"))["points"]
    assert runs and all(len({len(column) for column in run.values()}) == 1 for run in runs.values())


def test_a_missing_value_keeps_its_place(writer):
    points = [{"turns": 0, "success": 0.0}, {"turns": 9, "success": 0.5, "turns_solved": 4.0}]
    assert writer.columns(points) == {"turns": [0, 9], "success": [0.0, 0.5], "turns_solved": [None, 4.0]}
