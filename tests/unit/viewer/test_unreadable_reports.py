"""Test that an evaluation whose report is unreadable is a message on its own card and row, and hides no other one."""

import json
import shutil
import urllib.request
from pathlib import Path

import pytest

from tests.support.evaluated_games import evaluated
from tests.support.viewing import at, viewing
from verl_agent.errors import ConfigError
from verl_agent.results.folder import REPORT
from verl_agent.results.leaderboard import make_boards
from verl_agent.viewer.overview import read_overview
from verl_agent.viewer.state import ViewerState

REPORTS = {
    "half": '{"results": [',
    "list": "[1]",
    "none": '{"results": []}',
    "null": '{"model": null, "config": null, "results": [{"success": {"mean": null}}]}',
}
"""Reports that cannot be read, by folder."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evaluations")
    good = evaluated(root / "good", "cheap")
    for name, text in REPORTS.items():
        shutil.copytree(good, root / name)
        (root / name / REPORT).write_text(text)
    shutil.copytree(good, root / "date")
    records = [json.loads(line) for line in (good / "episodes.jsonl").read_text().splitlines()]
    dated = ({**one, "started_at": "2026-W01-1T00:00:00+00:00"} for one in records)
    (root / "date" / "episodes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in dated))
    return root


def test_overview_of_an_unreadable_report_has_a_message_and_the_other_facts(folder: Path) -> None:
    state = ViewerState([folder])
    for opened in state.opened.values():
        opened.index.update()
        overview = read_overview(opened)
        assert overview.facts["episodes"] == "17"
        assert bool(overview.problem) == (opened.key in REPORTS), (opened.key, overview)
    state.close()


def test_boards_have_the_evaluations_that_can_be_read(folder: Path) -> None:
    broken: dict[Path, str] = {}
    (board,) = make_boards([folder], broken)
    assert [Path(row.folder).name for row in board.rows] == ["date", "good"]
    assert {one.name for one in broken} == set(REPORTS)
    with pytest.raises(ConfigError, match=REPORT):
        make_boards([folder])


@pytest.mark.timeout(300)
def test_home_and_leaderboard_show_every_evaluation(folder: Path, tmp_path: Path) -> None:
    with viewing(folder, tmp_path / "config") as url:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        home = browser.open(url).read().decode()
        board = browser.open(at(url, "/leaderboard")).read().decode()
        one = browser.open(at(url, "/run/null")).read().decode()
    for text in (home, board):
        assert "has failed" not in text
        assert all(f"/run/{name}" in text for name in (*REPORTS, "good", "date"))
    assert home.count("Not all of this run can be shown") == len(REPORTS)
    assert board.count(f"/{REPORT} ") == len(REPORTS) and "All conditions" in board
    assert "Not all of this run can be shown" in one
