"""Test that links lead to runs, pages and images whatever their names are."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from starlette.datastructures import QueryParams

from verl_agent.errors import ConfigError
from verl_agent.viewer.links import link_to, run_path
from verl_agent.viewer.pages.run import other_runs
from verl_agent.viewer.pages.table import in_order
from verl_agent.viewer.state import ViewerState

NAMES = ("a#b", "a?b", "100%25", "lr=1e-5,seed=1", "a b", "ü")


@pytest.mark.parametrize("name", NAMES)
def test_a_link_leads_to_the_run_whatever_its_name_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "metrics").mkdir(parents=True)
    state = ViewerState([tmp_path / name])
    opened = state.get(name)
    for path in (run_path(opened, "/episode/1"), link_to(run_path(opened, "/episode/1"), {"turn": 2, "text": ""})):
        parts = urlsplit(path)
        assert unquote(parts.path) == f"/run/{name}/episode/1"
        assert parts.query in ("", "turn=2")
    state.close()


def test_runs_with_commas_in_their_names_are_drawn_over_each_other(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name / "metrics").mkdir(parents=True)
    state = ViewerState([tmp_path / name for name in NAMES])
    query = QueryParams(urlsplit(link_to("/run/x", {"with": list(NAMES), "x": "step"})).query)
    assert [opened.key for opened in other_runs(state, query)] == list(NAMES)
    with pytest.raises(ConfigError, match="no run 'lr=1e-5' is open"):
        other_runs(state, QueryParams("with=lr%3D1e-5"))
    state.close()


def test_rows_are_ordered_by_a_column_of_numbers_texts_and_missing_values() -> None:
    rows = [{"turns": value} for value in (10, "b", 9, None, "a")]
    ordered = [None, 9, 10, "a", "b"]
    assert [row["turns"] for row in in_order(rows, "turns")] == ordered
    assert [row["turns"] for row in in_order(rows, "-turns")] == ordered[::-1]
    assert in_order(rows, "other") == in_order(rows, "") == rows
