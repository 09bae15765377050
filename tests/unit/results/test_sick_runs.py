"""Test that the first finding on a run names its disease and the step at which it began."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.scripted_runs import history_of
from tests.support.sick_runs import (
    HEALTHY,
    SICK,
    STEPS,
    MadeUpRun,
    PlayedRun,
    break_environment,
    cut,
    level,
    play,
    share,
    skip_task,
)
from verl_agent.results.findings import find_problems
from verl_agent.results.findings_history import RecordFollower, condensed_history
from verl_agent.results.findings_onset import Onset, find_onset
from verl_agent.results.findings_steps import change_since
from verl_agent.runs.folder import RunFolder
from verl_agent.trace.abandoned import add_abandoned
from verl_agent.trace.metrics_log import MetricsLog, read_log
from verl_agent.training.follow import describe_findings
from verl_agent.viewer.diagnosis import find_in_run
from verl_agent.viewer.state import ViewerState

NEAR = STEPS / 10


def texts(played: PlayedRun, folder: Path) -> list[str]:
    """Return the findings of a run on its folder."""
    played.write(folder)
    return [one.text for one in find_problems(history_of(played.records, read_log(sorted(folder.glob("metrics/*")))))]


@pytest.mark.parametrize("run", SICK.values(), ids=SICK)
def test_a_sick_run_is_named_with_its_onset(tmp_path: Path, run: MadeUpRun) -> None:
    found = texts(play(run), tmp_path / "run")
    named = re.match(r"(.*?) since step (\d+):", found[0])
    assert named and named[1].startswith(run.name), found
    assert abs(int(named[2]) - run.onset) <= NEAR, found


@pytest.mark.parametrize("run", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_run_has_no_finding(tmp_path: Path, run: MadeUpRun) -> None:
    assert [texts(play(run, seed), tmp_path / f"run_{seed}") for seed in (0, 100, 101, 102)] == [[]] * 4


def test_console_and_viewer_have_the_same_findings(tmp_path: Path) -> None:
    folder = play(SICK["environment"]).write(tmp_path / "run")
    (opened,) = ViewerState([folder]).opened.values()
    opened.index.update()
    found = [one.text for one in find_in_run(opened)]
    assert "The commonest error" in found[0]
    lines = describe_findings(RunFolder.at(folder))
    assert [line.removeprefix("finding: ").partition(" The episodes: ")[0] for line in lines] == found


def test_a_short_or_constant_series_has_no_onset() -> None:
    assert find_onset({}, 0.1) is None
    assert find_onset({1: 0.0, 2: 1.0, 3: 1.0}, 0.1) is None
    assert find_onset(dict.fromkeys(range(9), 0.4), 0.1) is None


def test_a_jump_is_found_at_its_first_step_and_in_its_direction_only() -> None:
    values = {step: float(step > 6) for step in range(1, 11)}
    assert find_onset(values, 0.1) == Onset(7, 0.0, 1.0)
    assert find_onset(values, 0.1, rising=False) is None


def findings_of(folder: Path) -> tuple[list[str], list[str]]:
    """Return the findings of the console and those of the viewer."""
    (opened,) = ViewerState([folder]).opened.values()
    opened.index.update()
    lines = describe_findings(RunFolder.at(folder))
    return (
        [line.removeprefix("finding: ").partition(" The episodes: ")[0] for line in lines],
        [one.text for one in find_in_run(opened)],
    )


def test_single_updates_that_are_not_finite_are_no_divergence(tmp_path: Path) -> None:
    played = play(HEALTHY["fast"])
    for line in played.starts[0]:
        if line["step"] in (20, 57, 60):
            line["data"]["actor/grad_norm"] = float("inf")
    assert texts(played, tmp_path / "run") == []


def test_a_divergence_begins_with_its_last_stretch(tmp_path: Path) -> None:
    played = play(MadeUpRun("Divergence", 40, level(0.4, 0.0, 41)))
    for line in played.starts[0]:
        if line["step"] == 2 or line["step"] >= 40:
            line["data"]["actor/grad_norm"] = None
    assert texts(played, tmp_path / "run")[0].startswith("Divergence since step 40: NaN or infinite: actor/grad_norm")


def test_a_run_without_a_valid_episode_names_the_environment_error(tmp_path: Path) -> None:
    folder = play(MadeUpRun("", 1, lambda step: 0.4, change=share(lambda step: 1.0, break_environment)))
    console, viewer = findings_of(folder.write(tmp_path / "run"))
    assert console == viewer
    assert viewer[0].startswith("100% of the episodes end with an error of the environment")
    assert "TimeoutError: step took longer than 30 s" in viewer[0]


def test_one_huge_number_hides_no_finding(tmp_path: Path) -> None:
    """Returns of one step, and metrics of another one; no episode is solved."""
    failing = share(lambda step: 0.4 if step >= 28 else 0.0, break_environment)
    played = play(MadeUpRun("", 28, lambda step: 0.0, change=failing))
    for record in played.records:
        if record["step"] == 12:
            record |= {"reward": 1e200, "shaped_return": 1e200}
    for line in played.starts[0][9:10]:
        line["data"] |= {"actor/entropy_loss": 1e200, "actor/grad_norm": 1e300}
    console, viewer = findings_of(played.write(tmp_path / "run"))
    assert viewer[0].startswith("Environment errors since step 28")
    assert console == viewer


def test_a_detector_that_fails_hides_no_other_finding() -> None:
    history = history_of(play(SICK["environment"]).records)
    broken = replace(history, copies=dict.fromkeys(history.copies, "no number"))  # type: ignore[misc]
    assert [one.text for one in find_problems(broken)] == [one.text for one in find_problems(history)] != []


def test_episodes_that_a_resumed_run_played_again_are_not_judged(tmp_path: Path) -> None:
    """The first start fell ill at step 20; the run was resumed from step 15, with groups of other names."""
    broken = play(MadeUpRun("", 20, lambda step: 0.4, change=share(level(0, 0.6, 20), break_environment)), seed=7)
    played = play(HEALTHY["fast"])
    again = [one for one in played.records if one["step"] > 15]
    for one in again:
        one |= {"started_at": one["started_at"].replace("2026-01-01", "2026-01-02"), "group": f"b{one['group']}"}
    lost = [{**one, "group": "lost", "step": 33} for one in broken.records if one["stop"] == "env_error"]
    lines = played.starts[0]
    first = [one for one in broken.records if one["step"] <= 30]
    run = PlayedRun([*first, *again, *lost], [lines[:30]])  # type: ignore[list-item]
    folder = run.write(tmp_path / "run")
    (folder / "metrics/20260102T000000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[15:]))
    add_abandoned(folder, ["lost"])
    assert findings_of(folder) == ([], [])


def test_a_run_that_is_ill_from_its_first_step_is_named(tmp_path: Path) -> None:
    cutting = MadeUpRun("", 1, lambda step: 0.4, change=share(lambda step: 0.45, cut))
    hacking = MadeUpRun("", 1, level(0.3, 0.8, 1, 40), lambda step: 0.3, share(lambda step: 0.85, skip_task))
    assert any("of the episodes are cut by a token budget" in one for one in texts(play(cutting), tmp_path / "cut"))
    found = texts(play(hacking), tmp_path / "short")
    assert any("of the solved episodes took fewer turns than the oracle" in one for one in found), found


def test_a_young_collapse_of_the_entropy_is_named(tmp_path: Path) -> None:
    run = MadeUpRun(
        "Entropy collapse",
        54,
        lambda step: 0.35,
        equal=lambda step: step >= 57,
        metrics=lambda step: {"actor/entropy_loss": level(0.5, 0.02, 54, 4)(step)},
    )
    named = re.match(r"Entropy collapse since step (\d+):", texts(play(run), tmp_path / "run")[0])
    assert named and abs(int(named[1]) - run.onset) <= NEAR


def test_the_entropy_that_falls_to_that_of_a_teacher_is_no_collapse(tmp_path: Path) -> None:
    def metrics(step: int) -> dict[str, float]:
        return {"actor/entropy_loss": level(0.5, 0.02, 20, 4)(step), "distillation/reverse_kl": 0.1}

    run = MadeUpRun("", 20, lambda step: 0.35, metrics=metrics)
    assert not [one for one in texts(play(run), tmp_path / "run") if "Entropy" in one]


def test_a_short_run_improves_by_more_than_the_error_of_its_episodes() -> None:
    solved = dict(enumerate((0.03, 0.06, 0.2, 0.17, 0.38, 0.39, 0.39, 0.3), start=1))
    errors = {step: (share * (1 - share) / 64) ** 0.5 for step, share in solved.items()}
    assert change_since(solved, 2, errors) == pytest.approx(0.345 - 0.03)
    assert change_since(solved, 2) == 0.0  # three values say too little by themselves
    assert change_since(solved, 2, dict.fromkeys(solved, 0.3)) == 0.0


def test_the_console_judges_all_steps_of_files_that_grow_large(tmp_path: Path) -> None:
    """One text of 33 MiB in the last record, which no earlier limit of bytes would have let it read past."""
    played = play(SICK["environment"])
    found = texts(played, tmp_path / "small")
    late = played.records[-1]
    late["turns"][0]["observation"] = "x" * 33 * 2**20
    lines = describe_findings(RunFolder.at(played.write(tmp_path / "large")))
    assert [line.removeprefix("finding: ").partition(" The episodes: ")[0] for line in lines] == found


def test_records_are_read_once_while_their_file_grows(tmp_path: Path) -> None:
    records = play(SICK["format"]).records
    folder = PlayedRun(records[:500]).write(tmp_path / "run")
    file = folder / "episodes/made_up.jsonl"
    followed = RecordFollower(folder)
    assert len(followed.read()) == 500
    with file.open("rb+") as out:
        out.write(b"no record any more")
    with file.open("a") as out:
        out.writelines(json.dumps(one) + "\n" for one in records[500:])
        out.write('{"version": 2')
    episodes = followed.read()
    assert condensed_history(episodes, MetricsLog()) == history_of(records)
