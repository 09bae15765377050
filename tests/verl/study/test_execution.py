"""Test whole studies: runs in worker processes, resumed and refused, and their report."""

import json
import os
import signal
import sys
from itertools import takewhile
from subprocess import PIPE, STDOUT, Popen

import pytest
import yaml
from typer.testing import CliRunner

from tests import ROOT
from tests.support.episodes import talk
from verl_agent.commands.cli import app
from verl_agent.config.composing import compose_training
from verl_agent.errors import ConfigError
from verl_agent.study.execution import Execution, check_cores, claim_study
from verl_agent.study.plan import make_plan
from verl_agent.study.report import write_study_report
from verl_agent.study.runs import study_runs
from verl_agent.study.verl_runs import end_when_spent, train_command, turns_by_step, validations

SMALL = [
    *("env.train_tasks=small_train", "env.eval_tasks=small_test", "env.options.ranges=null", "horizon.max_turns=[5]"),
    *("horizon.eval_max_turns=5", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=4"),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    values = {
        "question": "Does a limit of two turns learn less?",
        "recipe": str(ROOT / "recipes/studies/guess_number.yaml"),
        "arms": {"long": [], "short": ["horizon.max_turns=[2]"]},
        "strata": {"small": SMALL[:3] + SMALL[4:]},
        "seeds": [1, 2],
        "budget_turns": 150,
        "points": 2,
        "tiny": {
            "width": 16,
            "layers": 1,
            "heads": 2,
            "warm_tasks": 8,
            "warm_updates": 5,
            "warm_batch": 4,
            "eval_tasks": 6,
        },
    }
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_a_study_plays_its_runs_once_and_reports_them(file, tmp_path):
    out, plan, said, again = tmp_path / "out", make_plan(file), [], []
    Execution(plan, out, 1, said.append).run()
    assert sorted(path.name for path in (out / "warm/small").glob("*.pt")) == ["1.pt", "2.pt"]
    assert len([line for line in said if "area" in line]) == 4 and "; 3 left, until about" in said[1]
    assert "oracle" in said[0] and len(said) == 5
    Execution(plan, out, 1, again.append).run()
    assert again == ["4 of 4 runs have ended before."]
    paths = {path.name for path in write_study_report(plan, out)[0]}
    assert paths == {"report.md", "report.json", "success_small.png", "profiles.png"}
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    written = (out / "report.md").read_text(encoding="utf-8")
    assert "No arm can be better or worse with fewer than 6 seeds." in written
    assert len(report["points"]) == 4 and report["comparisons"]["short"]["verdict"].startswith("cannot tell")
    assert "4 of 4 runs" in written
    file.write_text(file.read_text(encoding="utf-8") + "margin: 0.2\n", encoding="utf-8")
    changed = make_plan(file)
    with pytest.raises(ConfigError, match=r"another version of this study: margin was None, is now 0\.2\."):
        Execution(changed, out, 1, said.append).run()
    with pytest.raises(ConfigError, match="another version"):
        write_study_report(changed, out)


@pytest.mark.parametrize(("short", "ends"), [(0.2, True), (0.8, False)])
def test_a_study_ends_after_the_first_look_that_tells_each_arm_from_the_reference(short, ends, file, tmp_path):
    out, said = tmp_path / "out", []
    values = {"seeds": list(range(1, 9)), "reference": "short", "stop": {"rule": "looks", "looks": [7, 8]}}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text(encoding="utf-8")) | values), encoding="utf-8")
    plan = make_plan(file)
    for run in study_runs(plan, plan.study.seeds[:7], ["long", "short"]):
        run.folder(out).mkdir(parents=True)
        end = (short if run.arm == "short" else 0.8) + 0.001 * run.seed * (1 if run.arm == "long" else -1) ** run.seed
        points = [{"turns": 0, "success": 0.1}, {"turns": 150, "success": end}]
        (run.folder(out) / "points.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in points))
        (run.folder(out) / "done.json").write_text("{}")
    Execution(plan, out, 1, said.append).run()
    told = "each other arm is better or worse than short"
    assert f"7 seeds: {told}" in said if ends else f"7 seeds: not {told}" in said
    assert all(run.done(out) != ends for run in study_runs(plan, [8], ["long", "short"]))


BATCH = "data.train_batch_size"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arms": {"long": [], "large": [f"{BATCH}=500"]}}, "env.train_tasks='small_train' has 51 tasks"),
        (
            {"arms": {"long": [f"{BATCH}=20"], "moved": [f"{BATCH}=20", "tiny.later_tasks=small_test"]}},
            "tiny.later_tasks='small_test' has 17 tasks",
        ),
        ({"search": {"key": BATCH, "values": [4, 500], "seeds": [9]}}, "env.train_tasks='small_train' has 51 tasks"),
    ],
    ids=["arm", "later tasks", "search"],
)
def test_a_batch_with_more_tasks_than_there_are_is_refused_before_the_first_run(changes, said, file, tmp_path):
    values = yaml.safe_load(file.read_text(encoding="utf-8")) | changes
    values["strata"] = {"small": SMALL[:3] + SMALL[4:5] + SMALL[6:]}
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"{said}, fewer than data\.train_batch_size"):
        Execution(make_plan(file), tmp_path / "out", 1, print).run()
    assert not (tmp_path / "out").exists()


def test_the_hash_of_the_first_code_is_kept_and_later_ones_are_added(tmp_path):
    def claimed(code, new_code=False):
        claim_study(tmp_path, {"file": "f", "configs": "c", "code": code}, new_code)
        return json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))["code"]

    assert claimed("a1") == claimed("a1") == ["a1"]
    with pytest.raises(ConfigError, match="another version of this study: code"):
        claimed("b2")
    assert claimed("b2", new_code=True) == claimed("b2") == ["a1", "b2"]
    (tmp_path / "study.json").write_text('{"file": "f", "configs": "c"}', encoding="utf-8")
    assert claimed("b2") == [None, "b2"]  # --new-code of an earlier version removed the hash


def test_a_training_run_is_evaluated_before_its_first_step(tmp_path):
    recipe = ROOT / "recipes/textcraft/grpo.yaml"
    command = train_command(recipe, ["data.seed=3"], tmp_path)
    composed = compose_training(recipe, command[command.index(recipe.stem) + 1 :])
    assert composed["trainer"]["val_before_train"] and composed["data"]["seed"] == 3
    assert not compose_training(recipe, [])["trainer"]["val_before_train"]


@pytest.mark.skipif(sys.platform != "linux", reason="a process chooses its cores on Linux only")
def test_jobs_that_leave_a_run_fewer_cores_than_ranks_raise_config_error(tmp_path):
    cores, path = len(os.sched_getaffinity(0)), tmp_path / "two.yaml"
    ranks, share = [f"trainer.n_gpus_per_node={cores + 1}"], max(1, cores // 2)
    values = {
        "question": "Is it?",
        "runner": "train",
        "recipe": str(ROOT / "recipes/guess_number/grpo_cpu.yaml"),
        "arms": {"long": [], "short": ["horizon.max_turns=[2]"]},
        "strata": {
            "small": [*ranks, "horizon.eval_max_turns=4", "trainer.total_training_steps=9", "trainer.test_freq=1"]
        },
        "seeds": [1, 2],
        "budget_turns": 150,
    }
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"{ranks[0]}, and --jobs=2 gives it {share} of this machine's cores"):
        Execution(make_plan(path), tmp_path / "out", 2, print).run()
    assert not (tmp_path / "out").exists()
    values["strata"]["small"][0] = "trainer.n_gpus_per_node=1"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    plan = make_plan(path)
    check_cores(plan, study_runs(plan, [1], ["long", "short"]), tmp_path / "out", 2)


def test_turns_of_a_step_are_those_of_all_workers_of_its_last_start(tmp_path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "episodes").mkdir()
    played = {  # replies of the episodes in the files of each process, by step
        "20261101T100000": {},
        "20261101T100100-host-1": {1: "a b", 2: "a"},
        "20261101T100101-host-2": {1: "a b c", 2: "a"},
        "20261101T110000": {},
        "20261101T110100-host-3": {2: "a b c d"},
        "20261101T110101-host-4": {2: "a b c", 3: "a"},
    }
    for name, steps in played.items():
        records = [talk(replies, purpose="train") | {"step": step} for step, replies in steps.items()]
        file = tmp_path / ("episodes" if records else "metrics") / f"{name}.jsonl"
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    assert turns_by_step(tmp_path) == {1: 5, 2: 7, 3: 1}


@pytest.mark.parametrize(("budget", "ends"), [(3, True), (4, False)])
def test_a_training_run_ends_after_the_validation_that_follows_its_last_turn(budget, ends, tmp_path):
    """The run is a process that logs a validation after three turns and sleeps."""
    for folder in ("metrics", "episodes"):
        (tmp_path / folder).mkdir()
    record = talk("a b c", purpose="train") | {"step": 1}
    (tmp_path / "episodes/20261101T100100-host-1.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    logged = {"step": 1, "data": {"val-aux/textcraft/success/mean@1": 0.5}}
    code = (
        "import pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(sys.argv[2]); time.sleep(float(sys.argv[3]))"
    )
    arguments = [str(tmp_path / "metrics/20261101T100000.jsonl"), json.dumps(logged) + "\n", "600" if ends else "6"]
    with Popen([sys.executable, "-c", code, *arguments]) as run:
        end_when_spent(run, tmp_path, budget)
        assert run.returncode == (-signal.SIGTERM if ends else 0)


def test_an_error_of_the_study_ends_the_training_run(tmp_path):
    for folder in ("metrics", "episodes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "episodes/20261101T100100-host-1.jsonl").write_text("[]\n", encoding="utf-8")
    logged = {"step": 1, "data": {"val-aux/textcraft/success/mean@1": 0.5}}
    (tmp_path / "metrics/20261101T100000.jsonl").write_text(json.dumps(logged) + "\n", encoding="utf-8")
    with Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as run:
        with pytest.raises(ConfigError, match=r"host-1\.jsonl:1: "):
            end_when_spent(run, tmp_path, 3)
        assert run.returncode == -signal.SIGTERM


def test_a_start_that_resumed_a_run_replaces_the_steps_that_it_trains_again(tmp_path):
    """The first start played four steps and validated two; the second one went on after step 1."""
    (tmp_path / "metrics").mkdir()
    (tmp_path / "episodes").mkdir()
    success, trained = "val-aux/textcraft/success/mean@1", {"timing_s/step": 1.0}
    starts = {
        "20261101T100000": {0: {success: 0.1}, 1: trained, 2: trained | {success: 0.2}, 4: trained | {success: 0.9}},
        "20261101T110000": {1: {success: 0.15}, 2: trained | {success: 0.3}},
    }
    for start, steps in starts.items():
        lines = [json.dumps({"step": step, "data": data}) + "\n" for step, data in steps.items()]
        (tmp_path / f"metrics/{start}.jsonl").write_text("".join(lines), encoding="utf-8")
        played = [
            talk("a b c", purpose="train") | {"step": step} for step, data in steps.items() if "timing_s/step" in data
        ]
        file = tmp_path / f"episodes/{start[:-4]}0100-host-1.jsonl"
        file.write_text("".join(f"{json.dumps(record)}\n" for record in played), encoding="utf-8")
    found = [(point["step"], point["turns"], point["success"]) for point in validations(tmp_path)]
    assert found == [(0, 0, 0.1), (1, 3, 0.15), (2, 6, 0.3)]


def test_a_validation_has_the_means_of_training_since_the_one_before(tmp_path):
    (tmp_path / "metrics").mkdir()
    success = {"val-aux/textcraft/success/mean@1": 0.5}
    logged = [
        success,
        {"stop/turn_limit": 0.2, "actor/entropy_loss": 1.0, "timing_s/step": 3.0},
        {"stop/turn_limit": 0.4, "actor/entropy_loss": 2.0, "timing_s/step": 4.0} | success,
        {"stop/turn_limit": 0.8, "actor/entropy_loss": 3.0, "timing_s/step": 5.0} | success,
    ]
    lines = [json.dumps({"step": step, "data": data}) for step, data in enumerate(logged)]
    (tmp_path / "metrics/20261101T100000.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    start, second, third = validations(tmp_path)
    assert start == {"step": 0, "turns": 0, "seconds": 0, "success": 0.5}
    assert second == start | {"step": 2, "seconds": 7, "limited": pytest.approx(0.3), "entropy": 1.5}
    assert third == start | {"step": 3, "seconds": 12, "limited": 0.8, "entropy": 3}


def test_a_full_disk_names_the_folder_of_the_study(file, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "study.yaml.part").symlink_to("/dev/full")
    result = CliRunner().invoke(app, ["study", "run", str(file), "--out", str(out)])
    assert result.exit_code == 2 and "No space left" in result.stderr and f"Repair {out}" in result.stderr
    assert not (out / "study.yaml").exists()


def test_an_interrupted_study_says_how_to_go_on(file, tmp_path):
    command = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "study", "run", str(file)]
    command += ["--out", str(tmp_path / "out")]
    with Popen(command, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True) as process:
        before = list(takewhile(lambda line: "left, until" not in line, process.stdout))
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C in a terminal does
        after = process.stdout.read()
    assert "episodes of the oracle" in before[-1] and process.returncode == 130
    assert "Interrupted. The same command goes on" in after and "Traceback" not in after


def test_a_run_that_fails_is_the_last_one(file, tmp_path):
    out = tmp_path / "out"
    broken = out / "runs/small/long/1"
    broken.parent.mkdir(parents=True)
    broken.write_text("a file where the run writes its folder", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"long, seed 1.*the next start resumes"):
        Execution(make_plan(file), out, 1, print).run()
    assert [path for path in out.glob("runs/small/*/*") if path != broken] == []
    with pytest.raises(ConfigError, match=r"long, seed 1.*the next start resumes"):
        Execution(make_plan(file), out, 1, print).run()
    played = sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in out.glob("runs/small/*/*/done.json"))
    assert played == ["long/2", "short/1", "short/2"], "another start plays the run that failed last"
