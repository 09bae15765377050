"""Test the report of a study from the points of its runs."""

import json
import re
from dataclasses import replace
from random import Random

import pytest
import yaml
from typer.testing import CliRunner

from tests import ROOT
from verl_agent.commands.cli import app
from verl_agent.errors import ConfigError
from verl_agent.study.execution import decisions
from verl_agent.study.measurements import why
from verl_agent.study.plan import make_plan
from verl_agent.study.report import p_text, write_study_report
from verl_agent.study.runs import Results, search_runs, study_runs


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    file = tmp_path_factory.mktemp("study") / "own.yaml"
    values = {
        "question": "Which limit learns faster?",
        "recipe": str(ROOT / "recipes/studies/guess_number.yaml"),
        "arms": {name: [f"horizon.max_turns=[{turns}]"] for name, turns in (("long", 12), ("same", 11), ("short", 4))},
        "seeds": list(range(1, 11)),
        "budget_turns": 1000,
        "stop": {"rule": "successive", "block": 5},
    }
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return make_plan(file)


def play(plan, seeds, out, arms=("long", "same", "short"), ends=(0.3, 0.8)):
    """Write the points of runs of some seeds, in which the short limit learns less."""
    luck = Random(1)
    for run in study_runs(plan, seeds, arms):
        end = ends[run.arm != "short"] + 0.01 * luck.random() + 0.02 * run.seed
        points = [
            {"turns": turns, "success": 0.1 + (end - 0.1) * turns / 1200, "cpu_s": 1.0} for turns in (0, 600, 1200)
        ]
        run.folder(out).mkdir(parents=True)
        (run.folder(out) / "points.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in points))
        (run.folder(out) / "done.json").write_text("{}")


def test_one_seed_decides_nothing_and_says_nothing_about_learning(plan, tmp_path):
    play(plan, [1], tmp_path)
    write_study_report(plan, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "One seed has no interval" in text and "No arm has learned" not in text


def test_a_report_has_the_verdict_of_each_arm(plan, tmp_path):
    play(plan, plan.study.seeds, tmp_path)
    paths, answers = write_study_report(plan, tmp_path)
    assert len(paths) == 4 and re.fullmatch(r"short minus long: -0.2\d\d \[.*\], worse", answers[1])
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    verdicts = {arm: one["verdict"] for arm, one in written["comparisons"].items()}
    assert verdicts == {"same": "equal within the margin", "short": "worse"}
    assert written["comparisons"]["short"]["holm"] == pytest.approx(2 * 2 / 2**10)
    assert list(written["differences"]) == ["same", "short"]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "* arm short: horizon.max_turns=[4]" in text and "no arm can be" not in text.lower()
    assert "30 of 30 runs" in text and "long and short (larger: long)" in text


def test_an_arm_that_stopping_dropped_is_worse_though_its_seeds_are_few(plan, tmp_path):
    play(plan, plan.study.seeds[:5], tmp_path)
    play(plan, plan.study.seeds[5:], tmp_path, ["long", "same"])
    write_study_report(plan, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written["comparisons"]["short"]["verdict"] == "worse by successive stopping"
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    rows = {row.split(" | ")[0][2:]: row for row in text.split("\n## ")[0].splitlines() if row.startswith("| ")}
    assert "[" not in rows["short"] and " |  | " in rows["short"], "neither an interval nor a p value"
    assert rows["same"].count("[") == 3 and "successive stopping dropped an arm" in text


def test_intervals_of_a_study_in_which_no_arm_was_dropped_yet_are_shown(plan, tmp_path):
    play(plan, plan.study.seeds[:5], tmp_path, ends=(0.3, 0.3))
    write_study_report(plan, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert re.search(r"\n\| short \| 5 \| [\d.]+ \[", text) and "stopping dropped an arm" not in text
    assert "With 5 seeds about 90 % of such bootstrap intervals cover, not 95 %." in text


@pytest.fixture
def two_strata(tmp_path):
    """Return the plan of a study with two strata."""
    file = tmp_path / "own.yaml"
    values = {
        "question": "Which order?",
        "recipe": str(ROOT / "recipes/studies/guess_number.yaml"),
        "arms": {"long": [], "short": ["horizon.max_turns=[4]"]},
        "strata": {"near": ["env.eval_tasks=train"], "far": ["env.eval_tasks=test"]},
        "seeds": [1, 2],
        "budget_turns": 1000,
        "measure": "final",
    }
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return make_plan(file)


def play_strata(plan, runs, out):
    """Write the points of runs, in which the short limit gains near and loses far."""
    for run in runs:
        end = 0.5 + 0.1 * (run.arm == "short") * (1 if run.stratum == "near" else -1) + 0.1 * run.seed
        points = [{"turns": 0, "success": 0.0}, {"turns": 1000, "success": end}]
        run.folder(out).mkdir(parents=True)
        (run.folder(out) / "points.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in points))
        (run.folder(out) / "done.json").write_text("{}")


def test_an_arm_that_gains_in_one_stratum_and_loses_in_another_is_told_by_stratum(two_strata, tmp_path):
    out = tmp_path / "out"
    play_strata(two_strata, study_runs(two_strata, [1, 2], ["long", "short"]), out)
    write_study_report(two_strata, out)
    text = (out / "report.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"\| short \| ([^|]*; [^|]*) \| ([^|]*; [^|]*) \|\n", text)
    assert [re.sub(r" \[.*?\]", "", cell) for cell in row] == ["0.550; -0.100", "0.750; 0.100"]  # far, near


def test_arms_that_share_no_seed_yet_have_no_row_by_stratum(two_strata, tmp_path):
    out = tmp_path / "out"
    runs = [*study_runs(two_strata, [1], ["long"]), *study_runs(two_strata, [2], ["short"])]
    play_strata(two_strata, runs, out)
    write_study_report(two_strata, out)
    text = (out / "report.md").read_text(encoding="utf-8")
    assert re.search(r"\| long \| [^|]*; [^|]* \|", text) and not re.search(r"\| short \| [^|]*; [^|]* \|", text)


def test_differences_of_pairs_have_the_sign_of_those_to_the_first_arm(plan, tmp_path):
    play(plan, plan.study.seeds, tmp_path)
    _, answers = write_study_report(plan, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"\|  \| long \| same \|\n[-| ]*\n\| same \| [^|]* \|  \|\n\| short \| ([^|]*) \|", text)
    assert row.startswith("-0.2") and answers[1].startswith(f"short minus long: {row}")


def test_a_pair_that_shares_no_seed_has_no_difference(plan, tmp_path):
    for seeds, arms in (([1, 2], ["long", "same"]), ([3, 4], ["long", "short"])):
        play(plan, seeds, tmp_path, arms)
    write_study_report(plan, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert re.search(r"\n\| short \| -0\.\d+ [^|]* \|  \|\n", text)


@pytest.mark.parametrize(("seeds", "told"), [(4, False), (5, True)])
def test_needed_seeds_are_told_from_five_seeds_on(seeds, told, plan, tmp_path):
    play(plan, plan.study.seeds[:seeds], tmp_path)
    write_study_report(plan, tmp_path)
    assert ("Seeds that an interval" in (tmp_path / "report.md").read_text(encoding="utf-8")) == told


def test_arms_that_do_not_learn_are_not_called_equal(plan, tmp_path):
    play(plan, plan.study.seeds, tmp_path, ends=(0.0, 0.0))
    write_study_report(plan, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    verdicts = {one["verdict"] for one in written["comparisons"].values()}
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert verdicts == {"cannot tell: no arm learned"} and "**equal" not in text


def test_an_arm_that_loses_what_the_warm_start_had_is_worse_though_none_learned(plan, tmp_path):
    play(plan, plan.study.seeds, tmp_path, ends=(-1.0, -0.2))
    write_study_report(plan, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written["comparisons"]["short"]["verdict"] == "worse"
    assert written["comparisons"]["same"]["verdict"] == "cannot tell: no arm learned"


def test_a_block_in_which_an_arm_still_plays_decides_nothing(plan, tmp_path):
    play(plan, plan.study.seeds[:5], tmp_path, ends=(0.3, 0.3))
    play(plan, plan.study.seeds[5:], tmp_path, ["long"], ends=(0.3, 0.3))
    play(plan, plan.study.seeds[5:], tmp_path, ["same"], ends=(0.3, 9.9))
    assert decisions(plan, tmp_path) == {}
    play(plan, plan.study.seeds[5:], tmp_path, ["short"], ends=(0.3, 0.3))
    assert decisions(plan, tmp_path) == {("long", "same"): "same", ("same", "short"): "same"}


def test_the_report_names_values_at_an_end_of_the_search(plan, tmp_path):
    values = yaml.safe_load(plan.file.read_text(encoding="utf-8"))
    del values["stop"]
    file = tmp_path / "searched.yaml"
    search = {"values": [1e-4, 2e-4, 4e-4], "seeds": [11]}
    file.write_text(yaml.safe_dump(values | {"search": search}), encoding="utf-8")
    searched = make_plan(file)
    best = {"long": 1e-4, "same": 2e-4, "short": 4e-4}
    for run in search_runs(searched):
        run.folder(tmp_path).mkdir(parents=True)
        point = {"turns": 1000, "success": 0.5 + 0.1 * (run.value == best[run.arm])}
        (run.folder(tmp_path) / "points.jsonl").write_text(json.dumps(point) + "\n")
        (run.folder(tmp_path) / "done.json").write_text("{}")
    play(searched, [1], tmp_path)
    write_study_report(searched, tmp_path)
    said = "long 0.0001 (least tried); same 0.0002; short 0.0004 (largest tried)."
    assert said in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_report_names_code_that_came_after_the_first_run(plan, tmp_path):
    play(plan, [1], tmp_path)
    for code, said in (
        (["a1", "b2"], "code `a1`.\nLater runs had other code: `b2`."),
        ([None, "c3"], "code `unknown`"),
    ):
        (tmp_path / "study.json").write_text(json.dumps({**plan.facts, "code": code}), encoding="utf-8")
        write_study_report(plan, tmp_path)
        assert said in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_report_says_that_the_recipe_has_changed(plan, tmp_path):
    play(plan, [1], tmp_path)
    for configs, changed in ((plan.facts["configs"], False), ("0ld", True)):
        (tmp_path / "study.json").write_text(json.dumps({**plan.facts, "configs": configs}), encoding="utf-8")
        write_study_report(plan, tmp_path)
        assert ("defaults have changed since" in (tmp_path / "report.md").read_text(encoding="utf-8")) == changed


def test_a_small_p_value_is_not_zero():
    assert p_text(0.0004) == "below 0.001"


def test_turns_of_solved_tasks_are_reported_only_if_every_run_solves_one(plan):
    runs = study_runs(plan, [1, 2], ["long", "short"])
    points = {run: [{"turns": 1000, "success": 0.5, "turns_solved": 4.0 + run.seed}] for run in runs}
    assert Results(plan, points).differences("short")["turns"].mean == 0.0
    del points[runs[-1]][0]["turns_solved"]
    assert "turns" not in Results(plan, points).measured()


def test_means_of_training_are_those_of_the_points_that_have_them(plan):
    start, first, last = [{"turns": turns, "success": 0.5} for turns in (0, 500, 1000)]
    (run,) = study_runs(plan, [1], ["long"])
    assert list(why(Results(plan, {run: [start, first, last]}))) == []
    found = {run: [start, first | {"limited": 0.2, "uniform": 3.0}, last | {"uniform": 5.0, "step": 7}]}
    assert list(why(Results(plan, found)))[3] == "| long | 4 | 0.2 | 7 |"


def test_arms_are_also_compared_after_the_training_steps_of_the_shortest_run(plan):
    def results(short_learns):
        runs = zip(study_runs(plan, [1, 2], ["long", "short"]), (10, 40, 11, 44), strict=True)
        rates = {"long": 0.01, "short": short_learns}  # success of a step
        end = {run: {"turns": 1000, "success": rates[run.arm] * steps, "step": steps} for run, steps in runs}
        return Results(plan, {run: [{"turns": 0, "success": 0.0}, last] for run, last in end.items()})

    assert results(0.01).difference("short", "long", "area").mean > 0.1
    assert results(0.01).at_equal_steps("short", "long").mean == pytest.approx(0)
    assert results(0.02).at_equal_steps("short", "long").mean == pytest.approx(0.05)
    assert results(0.02).at_equal_steps("short", "same") is None


def test_early_warnings_and_thirds_of_turns_are_of_points_with_one_limit(plan):
    known = {"turns": 0, "success": 0.5, "full_replies": 0.0, "entropy": 1.0}
    (staged, mixed) = study_runs(plan, [1], ["long", "same"])
    values = {  # mean limit and last limit of the steps, share of invalid actions, gradient in the last third
        staged: [(4, 4, 0.1, 0.0), (6, 8, 0.2, 0.3), (8, 8, 0.3, 0.9), (8, 8, 0.35, 0.7)],
        mixed: [(8, 8, 0.1, 0.2), (6, 4, 0.4, 0.4), (9, 12, 0.4, 0.4)],
    }
    points = {
        run: [
            known,
            *(
                {**known, "max_turns": mean, "limit": limit, "invalid": invalid, "noise_last": noise}
                for mean, limit, invalid, noise in found
            ),
        ]
        for run, found in values.items()
    }
    points[mixed][1]["signal"] = 0.125  # of runs that were played with later code
    text = "\n".join(why(Results(plan, points)))
    assert "| long |  | 0.8 | " in text and "| same | 0.125 |  | " in text
    assert "| long | 1 | 0 | 0 | 0 |" in text and "| same | 0 | 0 | 0 | 0 |" in text


def test_early_warnings_of_limits_by_task_are_from_the_first_third_to_the_last(plan):
    known = {"turns": 0, "success": 0.5, "full_replies": 0.0, "entropy": 1.0, "limit": 12, "uniform_turns": 0.25}
    (run,) = study_runs(plan, [1], ["long"])
    shares = (0.1, 0.1, 0.3, 0.9, 0.2, 0.3)  # 0.1, at last 0.25
    points = [known, *({**known, "max_turns": 6 + share, "invalid": share} for share in shares)]
    by_task = replace(plan, by_group=["long"])
    text = "\n".join(why(Results(by_task, {run: points})))
    assert "| long | 1 | 1 | 0 | 0 |" in text and "share of turns in groups of equal returns" in text
    assert "| long | 0 | 0 | 0 | 0 |" in "\n".join(why(Results(by_task, {run: points[:3]})))


@pytest.fixture
def looked_at(tmp_path):
    """Return the plan of a study that is looked at after 8 and 10 seeds, with a reference that is not the first arm."""
    file = tmp_path / "looks.yaml"
    values = {
        "question": "Which limit learns faster?",
        "recipe": str(ROOT / "recipes/studies/guess_number.yaml"),
        "arms": {name: [f"horizon.max_turns=[{turns}]"] for name, turns in (("long", 12), ("same", 11), ("short", 4))},
        "seeds": list(range(1, 11)),
        "budget_turns": 1000,
        "reference": "short",
        "stop": {"rule": "looks", "looks": [8, 10]},
    }
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return make_plan(file)


def test_a_report_compares_with_the_reference_and_corrects_p_by_the_looks(looked_at, tmp_path):
    out = tmp_path / "out"
    play(looked_at, looked_at.study.seeds[:8], out)
    _, answers = write_study_report(looked_at, out)
    assert [re.sub(r"0\.\d+ \[.*\]", "", answer) for answer in answers] == [
        "long minus short: , better",
        "same minus short: , better",
    ]
    written = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert list(written["differences"]) == list(written["comparisons"]) == ["long", "same"]
    assert written["comparisons"]["long"]["holm"] == pytest.approx(2 * 2 * 2 / 2**8)  # looks, arms, signs
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "Looks after 8 and 10 seeds: ended after 8." in text and "multiplied by 2, the number of looks" in text
    assert "arm short: horizon.max_turns=[4]; the others are compared with it" in text


def test_a_report_has_no_verdicts_between_looks(looked_at, tmp_path):
    """They would be a further look, which p is not corrected for."""
    play(looked_at, looked_at.study.seeds[:9], tmp_path / "out")
    _, answers = write_study_report(looked_at, tmp_path / "out")
    assert [answer.rpartition(", ")[2] for answer in answers] == ["none between looks"] * 2
    assert "Verdicts follow after 8 and 10 seeds of all arms only." in (tmp_path / "out/report.md").read_text()


@pytest.mark.parametrize(
    ("reference", "seeds", "settled"), [("short", 8, True), ("short", 7, False), ("long", 8, False)]
)
def test_a_study_is_settled_when_each_other_arm_is_told_from_the_reference(
    reference, seeds, settled, looked_at, tmp_path
):
    """Arms long and same are about equal; the runs of seed 8 are missing if 7 have been played."""
    play(looked_at, looked_at.study.seeds[:seeds], tmp_path)
    plan = replace(looked_at, study=replace(looked_at.study, reference=reference))
    points = {
        run: run.points(tmp_path) for run in study_runs(plan, plan.study.seeds[:seeds], ["long", "same", "short"])
    }
    assert Results(plan, points).settled(8) == settled


def test_seeds_after_a_look_do_not_change_what_it_decided(looked_at, tmp_path):
    play(looked_at, looked_at.study.seeds[:8], tmp_path)
    play(looked_at, looked_at.study.seeds[8:], tmp_path, ends=(9.9, 0.3))
    runs = study_runs(looked_at, looked_at.study.seeds, ["long", "same", "short"])
    results = Results(looked_at, {run: run.points(tmp_path) for run in runs})
    assert results.settled(8) and not results.settled(10)


def test_a_report_on_a_full_disk_names_its_folder(plan, tmp_path):
    play(plan, [1], tmp_path)
    (tmp_path / "report.md").symlink_to("/dev/full")
    result = CliRunner().invoke(app, ["study", "report", str(plan.file), "--out", str(tmp_path)])
    assert result.exit_code == 2 and "No space left" in result.stderr and f"Repair {tmp_path}" in result.stderr


def test_a_report_without_runs_raises_config_error(plan, tmp_path):
    with pytest.raises(ConfigError, match="no arm has a seed that has ended"):
        write_study_report(plan, tmp_path)


def test_a_torn_line_of_points_is_named_unless_it_is_the_unfinished_last_one(plan, tmp_path):
    run = study_runs(plan, [1], ["long"])[0]
    folder = run.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "points.jsonl").write_bytes(b'{"turns": 1}\n\0\0')
    assert run.points(tmp_path) == [{"turns": 1}]
    (folder / "points.jsonl").write_bytes(b'{"turns": 1}\n\0\0\n')
    with pytest.raises(ConfigError, match=r"points\.jsonl:2: not JSON .*Remove the line"):
        run.points(tmp_path)
