"""Folder of a run: resuming, finishing and pruning."""

import json
import re
import shutil
from pathlib import Path

import pytest

from verl_agent.config.plan_parts import Schedule, read_part
from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import READ_BYTES, TRACKER, begin_checkpoint, finish_checkpoint, latest_checkpoint
from verl_agent.runs.folder import RunFolder, check_resume

MAY_CHANGE = ("trainer.logger",)


def settings(lr: float = 1e-5) -> dict[str, object]:
    return {"env": {"name": "toy"}, "actor": {"optim": {"lr": lr}}, "trainer": {"logger": ["file"]}}


def saved(root: Path, *steps: int) -> RunFolder:
    """Write complete checkpoints as a trainer does, the last of them last."""
    for step in steps:
        folder = root / f"global_step_{step}"
        begin_checkpoint(folder)
        (folder / "actor").mkdir(exist_ok=True)
        (folder / "actor/model_world_size_1_rank_0.pt").write_bytes(bytes(READ_BYTES + 1))
        (folder / "data.pt").write_text(f"order of tasks at step {step}")
        (root / TRACKER).write_text(str(step))
        finish_checkpoint(folder)
    return RunFolder.at(root)


def run_of(root: Path, *steps: int) -> RunFolder:
    """Write the folder of a run with recorded settings and complete checkpoints."""
    RunFolder.at(root).claim(settings(), MAY_CHANGE)
    return saved(root, *steps)


def steps_in(root: Path) -> list[str]:
    return sorted(path.name.removeprefix("global_step_") for path in root.glob("global_step_*"))


def log(folder: RunFolder, step: int) -> None:
    folder.metrics.parent.mkdir(exist_ok=True)
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"step": step, "data": {"actor/loss": 0.0}}) + "\n")


def test_a_start_after_a_clock_that_went_back_has_the_last_metrics(tmp_path: Path):
    later = RunFolder(tmp_path, "20991231T235959")
    for step in (1, 2, 3):
        log(later, step)
    (tmp_path / "metrics/notes.jsonl").touch()
    resumed = RunFolder.at(tmp_path)
    log(resumed, 3)
    assert resumed.started == "21000101T000000"
    assert sorted([later.metrics, resumed.metrics]) == [later.metrics, resumed.metrics]
    assert RunFolder.at(tmp_path).started > resumed.started


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        (
            {"resume_mode": "resume_path", "resume_from_path": "runs/x/global_step_9"},
            "trainer.resume_from_path='runs/x/",
        ),
        ({"resume_mode": "auto", "resume_from_path": "runs/x/global_step_9"}, "trainer.resume_from_path='runs/x/"),
        ({"resume_mode": "always", "resume_from_path": None}, "trainer.resume_mode='always' is not allowed"),
    ],
)
def test_resuming_from_another_folder_raises_config_error(trainer, message):
    with pytest.raises(ConfigError) as error:
        check_resume(read_part(Schedule, {"trainer": trainer}, folder=Path()), "model.path")
    assert str(error.value).startswith(message) and "set model.path to it" in str(error.value)


def test_the_same_recipe_resumes(tmp_path):
    RunFolder.at(tmp_path).claim(settings(), MAY_CHANGE)
    saved(tmp_path, 3).claim(settings(), MAY_CHANGE)


def test_another_recipe_in_the_same_folder_raises_config_error(tmp_path):
    RunFolder.at(tmp_path).claim(settings(), MAY_CHANGE)
    with pytest.raises(ConfigError, match=r"step 3 of another recipe: actor.optim.lr was 1e-05, is now 2e-05"):
        saved(tmp_path, 3).claim(settings(lr=2e-5), MAY_CHANGE)


def test_a_checkpoint_without_recorded_settings_raises_config_error(tmp_path):
    """For example, a checkpoint of plain verl, which may be of any algorithm."""
    with pytest.raises(ConfigError, match=r"step 3 of a run whose run.json is missing"):
        saved(tmp_path, 3).claim(settings(), MAY_CHANGE)
    assert not (tmp_path / "run.json").exists()


def test_a_folder_without_a_checkpoint_takes_any_recipe(tmp_path):
    RunFolder.at(tmp_path).claim(settings(), MAY_CHANGE)
    RunFolder.at(tmp_path).claim(settings(lr=1.0), MAY_CHANGE)


def test_starting_anew_over_a_checkpoint_raises_config_error(tmp_path):
    with pytest.raises(ConfigError, match="resume_mode=disable would mix two runs"):
        saved(tmp_path, 3).claim(settings(), MAY_CHANGE, "disable")


def test_a_run_is_finished_when_its_last_step_is_saved_and_logged(tmp_path):
    """Verl saves a step before it validates and logs it."""
    folder = saved(tmp_path, 5)
    assert not folder.finished(5)
    log(folder, 4)
    assert not folder.finished(5)
    (folder.root / "metrics" / "b.jsonl").write_text('{"step": 5, "data": {"a": 1}, "before_saving": true}\n')
    assert not folder.finished(5), "its validation is missing"
    log(folder, 5)
    assert folder.finished(5)
    assert not folder.finished(6)


def test_prune_removes_older_checkpoints_of_earlier_starts(tmp_path):
    folder = saved(tmp_path, 1, 2, 3)
    begin_checkpoint(tmp_path / "global_step_5")  # was being written when the run was killed
    (tmp_path / "global_step_of_mine").mkdir()
    folder.prune(None)
    assert steps_in(tmp_path) == ["1", "2", "3", "5", "of_mine"]
    folder.prune(2, running=True)
    assert steps_in(tmp_path) == ["2", "3", "5", "of_mine"]
    folder.prune(1)
    assert steps_in(tmp_path) == ["3", "of_mine"]


def test_prune_removes_the_link_of_a_checkpoint_that_was_moved(tmp_path):
    folder = saved(tmp_path / "run", 1, 2, 3)
    moved = shutil.move(folder.root / "global_step_1", tmp_path / "moved")
    (folder.root / "global_step_1").symlink_to(moved)
    folder.prune(1)
    assert steps_in(folder.root) == ["3"]
    assert any(moved.iterdir())


def truncate(checkpoint: Path) -> None:
    (checkpoint / "actor/model_world_size_1_rank_0.pt").write_bytes(b"half")


def remove_data(checkpoint: Path) -> None:
    (checkpoint / "data.pt").unlink()


def change_data(checkpoint: Path) -> None:
    (checkpoint / "data.pt").write_text("order of tasks at step 1")


def lose_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


DAMAGE = [
    (truncate, r"global_step_2: actor/model_world_size_1_rank_0\.pt has 4 bytes instead of 4,194,305"),
    (remove_data, r"global_step_2: data\.pt is missing"),
    (change_data, r"global_step_2: data\.pt has changed since it was written"),
    (lose_manifest, r"global_step_2: it has no readable manifest\.json"),
    (shutil.rmtree, r"global_step_2: the folder is missing"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_resumed(tmp_path, damage, message):
    folder = run_of(tmp_path, 1, 2)
    damage(tmp_path / "global_step_2")
    step, warning = folder.claim(settings(), MAY_CHANGE)
    assert step == folder.last_step == 1 and (tmp_path / TRACKER).read_text() == "1"
    kept = r" Kept as global_step_2\.damaged\." if "2.damaged" in steps_in(tmp_path) else ""
    assert re.fullmatch(rf"{message}\.{kept} The run resumes after step 1\.", warning)
    assert steps_in(tmp_path) == (["1"] if damage is shutil.rmtree else ["1", "2.damaged"])
    assert saved(tmp_path, 2).claim(settings(), MAY_CHANGE) == (2, "")


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_resume_mode_latest_refuses_a_damaged_checkpoint_and_changes_nothing(tmp_path, damage, message):
    folder = run_of(tmp_path, 1, 2)
    damage(tmp_path / "global_step_2")
    left = steps_in(tmp_path)
    with pytest.raises(ConfigError, match=rf"{message}\. trainer\.resume_mode=auto resumes after step 1, the newest"):
        folder.claim(settings(), MAY_CHANGE, "latest")
    assert steps_in(tmp_path) == left and (tmp_path / TRACKER).read_text() == "2"


@pytest.mark.parametrize("tracker", [None, "", "x", "2"])
def test_a_damaged_only_checkpoint_raises_config_error_instead_of_a_start_from_zero(tmp_path, tracker):
    folder = run_of(tmp_path, 2)
    truncate(tmp_path / "global_step_2")
    (tmp_path / TRACKER).unlink() if tracker is None else (tmp_path / TRACKER).write_text(tracker)
    with pytest.raises(ConfigError, match=r"has 4 bytes instead of .* No other one is complete\. Restore its files"):
        folder.claim(settings(), MAY_CHANGE)


@pytest.mark.parametrize("tracker", [None, "", "x"])
def test_a_run_without_a_readable_tracker_resumes_from_the_newest_checkpoint(tmp_path, tracker):
    folder = run_of(tmp_path, 1, 2, 3)
    (tmp_path / TRACKER).unlink() if tracker is None else (tmp_path / TRACKER).write_text(tracker)
    assert folder.claim(settings(), MAY_CHANGE) == (3, "")
    assert (tmp_path / TRACKER).read_text() == "3"
    folder.prune(2)
    assert steps_in(tmp_path) == ["2", "3"]


def test_checkpoints_without_manifest_and_tracker_raise_config_error(tmp_path):
    """For example, checkpoints of plain verl with asynchronous saving."""
    (tmp_path / "global_step_3" / "actor").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"global_step_3: it has no readable manifest\.json"):
        RunFolder.at(tmp_path).claim(settings(), MAY_CHANGE)
    assert (tmp_path / "global_step_3" / "actor").is_dir() and not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("tracked", [False, True])
def test_a_run_killed_in_its_first_checkpoint_says_that_it_starts_from_zero(tmp_path, tracked):
    folder = run_of(tmp_path)
    begin_checkpoint(tmp_path / "global_step_1")
    if tracked:  # killed between verl's tracker and the manifest
        (tmp_path / TRACKER).write_text("1")
    assert folder.last_step == 0 and latest_checkpoint(tmp_path) is None
    step, warning = folder.claim(settings(), MAY_CHANGE)
    assert (step, warning) == (0, "global_step_1: its writing did not end. The run starts from step 0.")
    assert steps_in(tmp_path) == [] and not (tmp_path / TRACKER).exists()


def test_a_run_killed_in_a_later_checkpoint_resumes_from_the_one_before(tmp_path):
    folder = run_of(tmp_path, 1, 2)
    begin_checkpoint(tmp_path / "global_step_3")
    (tmp_path / TRACKER).write_text("3")
    assert folder.last_step == 2
    step, warning = folder.claim(settings(), MAY_CHANGE, "latest")
    assert step == 2 and "global_step_3: its writing did not end" in warning
    assert steps_in(tmp_path) == ["1", "2"]


def test_the_tracker_chooses_an_earlier_checkpoint(tmp_path):
    folder = run_of(tmp_path, 1, 2, 3)
    (tmp_path / TRACKER).write_text("2")
    step, warning = folder.claim(settings(), MAY_CHANGE)
    assert (step, folder.last_step) == (2, 2)
    assert "Kept as global_step_3.later" in warning and (tmp_path / "global_step_3.later/actor").is_dir()
    folder.prune(1)
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == ["global_step_2", "global_step_3.later"]


def test_a_start_does_not_keep_a_damaged_checkpoint_instead_of_an_intact_one(tmp_path):
    folder = run_of(tmp_path, 1, 2, 3)
    next(path for path in (tmp_path / "global_step_2/actor").rglob("*") if path.is_file()).unlink()
    folder.prune(2)
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == ["global_step_1", "global_step_3"]


def test_room_is_needed_only_for_checkpoints_that_do_not_exist_yet(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    folder = saved(tmp_path, 1)
    for step, fits in ((2, False), (3, True)):
        checkpoint = tmp_path / f"global_step_{step}"
        begin_checkpoint(checkpoint)
        (checkpoint / "weights").write_text("a")
        finish_checkpoint(checkpoint)
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        manifest["files"]["weights"][0] = int(free * 0.6)  # a file of that size takes long to hash
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        if fits:
            folder.require_room(10 * free / 1e9, 3)  # one more, of the size of the last
        else:
            with pytest.raises(ConfigError, match=r"of free disk space, but .* will be written there"):
                folder.require_room(0.1, 3)
    folder.require_room(0.0, 9)  # a run that saves none


def test_a_new_run_needs_room_for_all_checkpoints_that_exist_at_once(tmp_path):
    free_gb = shutil.disk_usage(tmp_path).free / 1e9
    RunFolder.at(tmp_path).require_room(free_gb * 0.3, 2)
    with pytest.raises(ConfigError, match="will be written there"):
        RunFolder.at(tmp_path).require_room(free_gb * 0.4, 2)


def test_an_unfinished_checkpoint_is_not_kept_in_place_of_a_complete_one(tmp_path):
    folder = saved(tmp_path, 1, 3)
    begin_checkpoint(tmp_path / "global_step_2")
    folder.prune(2)
    assert steps_in(tmp_path) == ["1", "3"]
