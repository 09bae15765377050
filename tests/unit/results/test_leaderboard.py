"""Test the leaderboard: rows that are comparable, differences, costs, and the intervals and p values behind them."""

import json
import shutil
from io import StringIO
from math import comb
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console
from typer.testing import CliRunner

from tests.support.evaluated_games import evaluated
from verl_agent.commands.cli import app
from verl_agent.errors import ConfigError
from verl_agent.evaluation.job import prepare_evaluation
from verl_agent.evaluation.run import report_results, run_evaluation
from verl_agent.results.failures_report import analyze_failures
from verl_agent.results.folder import REPORT, planned_records
from verl_agent.results.leaderboard import make_boards
from verl_agent.results.leaderboard_report import leaderboard_markdown
from verl_agent.results.scaling_report import read_scaling
from verl_agent.results.significance import EXACT, holm, sign_flip_p_value
from verl_agent.results.statistics import pass_hat_k
from verl_agent.trace.record_files import read_records


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs")
    for model in ("oracle", "cheap", "expensive", "dominated"):
        evaluated(folder / model, model)
    return folder


def test_rows_of_equal_conditions_share_a_board_best_first(runs):
    (board,) = make_boards([runs])
    assert [row.model.rpartition(":")[2] for row in board.rows] == ["oracle", "expensive", "cheap", "dominated"]
    assert board.categories == ["1 to 7", "1 to 10"] and board.conditions["turns"] == [4]
    row = board.rows[1]
    assert [(result.category, result.tasks, result.success.mean) for result in row.results if result.success] == [
        ("1 to 7", 7, pytest.approx(4 / 7)),
        ("1 to 10", 10, 0.4),
        ("all", 17, pytest.approx(8 / 17)),
    ]
    assert row.macro is not None and row.macro.mean == pytest.approx((4 / 7 + 0.4) / 2)


@pytest.mark.parametrize("change", [{"turns": 3}, {"max_tasks": 5}])
def test_other_conditions_make_a_board_of_their_own(runs, tmp_path, change):
    evaluated(tmp_path / "other", "oracle", **change)
    boards = make_boards([runs, tmp_path / "other"])
    assert sorted(len(board.rows) for board in boards) == [1, 4]
    assert len({board.key for board in boards}) == 2


def test_differences_are_paired_by_task_and_corrected_for_all_pairs(runs):
    (board,) = make_boards([runs])
    assert len(board.differences) == 6
    one = board.differences[0]
    assert (one.first, one.difference.mean) == ("oracle", pytest.approx(9 / 17))
    assert one.return_difference.mean == pytest.approx(9 / 17) and one.return_difference.low > 0
    assert one.p_value == pytest.approx(2 / 2**9)
    assert one.adjusted > one.p_value and one.adjusted < 0.05


def test_costs_and_the_pareto_front_are_those_of_rows_with_a_cost(runs):
    (board,) = make_boards([runs])
    found = {row.model.rpartition(":")[2]: (row.cost_usd is not None, row.pareto) for row in board.rows}
    assert found == {
        "oracle": (False, False),
        "expensive": (True, True),
        "cheap": (True, True),
        "dominated": (True, False),
    }


def test_two_rows_of_one_model_are_named_by_their_folders(runs, tmp_path):
    evaluated(tmp_path / "again", "oracle")
    (board,) = make_boards([runs, tmp_path])
    assert {"oracle (oracle)", "oracle (again)"} <= {row.label for row in board.rows}


def test_a_model_in_a_folder_has_a_short_name(runs, tmp_path):
    shutil.copytree(runs / "oracle", tmp_path / "prepared")
    file = tmp_path / "prepared" / REPORT
    file.write_text(json.dumps({**json.loads(file.read_text()), "model": "/home/ada/.cache/models/smollm2-135m"}))
    (board,) = make_boards([tmp_path / "prepared"])
    assert [row.label for row in board.rows] == ["smollm2-135m"]


def test_the_command_writes_json_markdown_and_a_plot(runs, tmp_path):
    result = CliRunner().invoke(app, ["leaderboard", str(runs), "--into", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "guess_number, 17 tasks, agent act, turns 4 (conditions " in result.output
    value = json.loads((tmp_path / "leaderboard.json").read_text())
    assert (value["version"], len(value["boards"]), len(value["boards"][0]["rows"])) == (1, 1, 4)
    assert (tmp_path / "leaderboard.png").stat().st_size > 5000
    text = (tmp_path / "leaderboard.md").read_text()
    assert (
        "options none, agent name=act, turns 4, " in text
        and "perturb none, approval none, count_operated false" in text
    )
    assert "| model | 1 to 7 | 1 to 10 | macro mean | all | return | turns | tokens | USD | env errors |" in text
    assert "| oracle | 1.000 [0.646, 1.000] (7) | 1.000 [0.722, 1.000] (10) |" in text
    returns = value["boards"][0]["rows"][1]["results"][-1]["mean_return"]
    assert "| {mean:.3f} [{low:.3f}, {high:.3f}] (17) |".format(**returns) in text


def test_published_numbers_are_marked_and_beside_their_environment(runs):
    (board,) = make_boards([runs])
    assert board.published == {}
    shown = leaderboard_markdown([type(board)("textcraft", "k", {}, board.rows, [], {"GPT-4o": 0.83})])
    assert "| GPT-4o (published) |  |  |  | 0.830 (100) |" in shown and "may differ" in shown
    assert "Equal for all rows that were played here: `" in shown and "Equal for all rows: `" not in shown


def test_a_folder_without_an_evaluation_raises_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"contains no evaluation\.json\. Give output folders of `verl-agent eval`"):
        make_boards([tmp_path])
    (tmp_path / "evaluation.json").write_text('{"version": 1}')
    (tmp_path / "episodes.jsonl").touch()
    with pytest.raises(ConfigError, match=r"evaluation\.json has no 'config'\. Run eval again"):
        make_boards([tmp_path])


def test_the_p_value_of_signs_is_exact_for_few_tasks_and_drawn_for_many():
    assert sign_flip_p_value([0.0, 0.0]) == 1.0
    assert sign_flip_p_value([1.0] * 5 + [0.0] * 9) == 2 / 2**5
    assert sign_flip_p_value([1.0, 1.0, -1.0]) == 1.0
    wins, losses = 14, 4
    exact = 2 * sum(comb(wins + losses, k) for k in range(wins, wins + losses + 1)) / 2 ** (wins + losses)
    assert wins + losses > EXACT
    assert sign_flip_p_value([1.0] * wins + [-1.0] * losses) == pytest.approx(exact, abs=0.005)


def test_holm_corrects_by_rank_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_pass_hat_k_is_the_chance_that_all_samples_succeed():
    assert (pass_hat_k(4, 2, 1), pass_hat_k(4, 2, 2), pass_hat_k(4, 2, 3), pass_hat_k(3, 3, 3)) == (0.5, 1 / 6, 0, 1)
    with pytest.raises(ValueError, match=r"pass\^5 of 2 successes in 4 samples"):
        pass_hat_k(4, 2, 5)


def test_evaluations_with_other_rules_of_approval_have_a_board_of_their_own(runs, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{actions: ['*'], decision: reject, reason: never}]")
    evaluated(tmp_path / "rejected", "expensive", approve=str(rules))
    boards = make_boards([runs, tmp_path / "rejected"])
    assert sorted(len(board.rows) for board in boards) == [1, 4]
    assert {board.conditions["approval"] is None for board in boards} == {True, False}


def test_evaluations_that_treat_overlong_prompts_differently_have_boards_of_their_own(runs, tmp_path):
    evaluated(tmp_path / "other", "expensive")
    report = tmp_path / "other/evaluation.json"
    content = json.loads(report.read_text())
    content["config"]["data"]["overlong_prompt"] = "truncate_observation"
    report.write_text(json.dumps(content))
    assert sorted(len(board.rows) for board in make_boards([runs, tmp_path / "other"])) == [1, 4]


def changed(folder: Path, into: Path, **sections: dict) -> Path:
    """Copy an evaluation, with other values in sections of its report."""
    shutil.copytree(folder, into)
    report = json.loads((into / REPORT).read_text())
    for name, values in sections.items():
        place = report if name == "api" else report["config"]
        place[name] = {**(place.get(name) or {}), **values}
    (into / REPORT).write_text(json.dumps(report))
    return into


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_a_model_that_refused_a_sampling_setting_has_a_board_of_its_own(runs, tmp_path, name):
    refused = changed(runs / "oracle", tmp_path / "refused", api={"dropped": ["messages.reasoning", name, "seed"]})
    same = changed(runs / "oracle", tmp_path / "same", api={"dropped": ["seed"]})
    boards = make_boards([runs / "cheap", same, refused])
    assert sorted((len(board.rows), board.conditions[name]) for board in boards) == [(1, "not sent"), (2, 1.0)]


def test_a_number_is_the_same_condition_with_and_without_a_point(runs, tmp_path):
    ways = [
        changed(runs / "oracle", tmp_path / name, evaluation={"temperature": number}, env={"options": {"a": [number]}})
        for name, number in (("int", 0), ("float", 0.0))
    ]
    (board,) = make_boards(ways)
    assert len(board.rows) == 2 and "temperature 0.0" in leaderboard_markdown([board])
    other = changed(runs / "oracle", tmp_path / "other", evaluation={"temperature": 0.5})
    assert len(make_boards([*ways, other])) == 2


def test_records_beyond_the_planned_tasks_and_samples_count_nowhere(tmp_path):
    """An evaluation that resumes with a smaller limit keeps the records of the others."""
    folder = evaluated(tmp_path, "cheap", samples=2)
    evaluated(tmp_path, "cheap", max_tasks=5, samples=1)
    ((row,),) = (board.rows for board in make_boards([folder]))
    assert (row.overall.tasks, row.overall.episodes, row.planned, row.played) == (5, 5, 5, 5)
    curve = read_scaling(folder).curves[0]
    assert {one.tasks for one in curve.points.values()} == {5}
    summaries, failures = analyze_failures(folder)
    assert sum(summary.episodes for summary in summaries) == 5 and len(failures) < 5
    assert len(planned_records(folder)) == 5 < len(list(read_records(folder / "episodes.jsonl")))
    assert json.loads((folder / REPORT).read_text())["unplanned"] == 29
    config = OmegaConf.create(json.loads((folder / REPORT).read_text())["config"])
    report_results(prepare_evaluation(config), console := Console(file=StringIO(), width=400))
    assert "left out: 29 recorded episodes" in console.file.getvalue()
    evaluated(tmp_path, "cheap", samples=2)
    assert json.loads((folder / REPORT).read_text())["unplanned"] == 0


def test_a_row_without_a_category_is_marked_and_below_the_others(runs, tmp_path):
    """All episodes of the category ended with an environment error."""
    folder = evaluated(tmp_path / "broken", "oracle")
    records = list(read_records(folder / "episodes.jsonl"))
    for record in records:
        if record["category"] == "1 to 7":
            record |= {"stop": "env_error", "error": "lost", "success": False}
    (folder / "episodes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (board,) = make_boards([runs, folder])
    assert [bool(row.unmeasured) for row in board.rows] == [False] * 4 + [True]
    assert board.rows[-1].overall.success is not None and board.rows[-1].overall.success.mean == 1.0
    text = leaderboard_markdown([board])
    assert "(10) ‡ |" in text and "oracle (broken): 1 to 7" in text


def test_tokens_that_a_server_did_not_count_are_unknown(tmp_path):
    folder = evaluated(tmp_path, "uncounted")
    ((row,),) = (board.rows for board in make_boards([folder]))
    assert row.overall.tokens_mean is None and row.overall.turns_mean is not None
    assert [curve.name for curve in read_scaling(folder).curves] == ["turns"]


def test_a_comparison_with_an_unfinished_evaluation_says_how_much_of_it_was_played(tmp_path: Path):
    earlier = evaluated(tmp_path / "earlier", "cheap")

    def compared() -> str:
        """Return what a finished evaluation prints that is started again to compare."""
        folder = evaluated(tmp_path / "later", "cheap", compare_with=str(earlier))
        config = json.loads((folder / "evaluation.json").read_text())["config"]
        prepared = prepare_evaluation(OmegaConf.create(config))
        console = Console(file=StringIO(), width=400)
        run_evaluation(prepared, console)
        report_results(prepared, console)
        return " ".join(console.file.getvalue().split())

    assert "not finished" not in compared()
    records = (earlier / "episodes.jsonl").read_text().splitlines(keepends=True)
    (earlier / "episodes.jsonl").write_text("".join(records[:12]))
    report = json.loads((earlier / REPORT).read_text())
    (earlier / REPORT).write_text(json.dumps({**report, "played": 12}))
    text = compared()
    assert text.startswith(f"evaluation.compare_with={earlier} is not finished: it has 12 of 17 episodes.")
    assert "(not finished: 12 of 17 episodes), by task" in text
    (earlier / "evaluation.json").unlink()  # killed before its end
    assert "is not finished: it has 12 episodes and no evaluation.json." in compared()
