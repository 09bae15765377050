"""Folder of a run: resuming, finishing and pruning."""

import json
from pathlib import Path

import pytest

from verl_agent.errors import ConfigError
from verl_agent.runs.folder import RunFolder, check_resume

MAY_CHANGE = ("trainer.logger",)


def settings(lr: float = 1e-5) -> dict[str, object]:
    return {"env": {"name": "toy"}, "actor": {"optim": {"lr": lr}}, "trainer": {"logger": ["file"]}}


def saved(root: Path, step: int) -> RunFolder:
    root.joinpath("latest_checkpointed_iteration.txt").write_text(str(step))
    return RunFolder.at(root)


def log(folder: RunFolder, step: int) -> None:
    folder.metrics.parent.mkdir(exist_ok=True)
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"step": step, "data": {"actor/loss": 0.0}}) + "\n")


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
        check_resume(trainer, "model.path")
    assert str(error.value).startswith(message) and "set model.path to it" in str(error.value)


def test_the_same_recipe_resumes(tmp_path):
    RunFolder.at(tmp_path).claim(settings(), MAY_CHANGE, resume=True)
    saved(tmp_path, 3).claim(settings(), MAY_CHANGE, resume=True)


def test_another_recipe_in_the_same_folder_raises_config_error(tmp_path):
    RunFolder.at(tmp_path).claim(settings(), MAY_CHANGE, resume=True)
    with pytest.raises(ConfigError, match=r"step 3 of another recipe: actor.optim.lr was 1e-05, is now 2e-05"):
        saved(tmp_path, 3).claim(settings(lr=2e-5), MAY_CHANGE, resume=True)


def test_a_checkpoint_without_recorded_settings_raises_config_error(tmp_path):
    """For example, a checkpoint of plain verl, which may be of any algorithm."""
    with pytest.raises(ConfigError, match=r"step 3 of a run whose run.json is missing"):
        saved(tmp_path, 3).claim(settings(), MAY_CHANGE, resume=True)
    assert not (tmp_path / "run.json").exists()


def test_a_folder_without_a_checkpoint_takes_any_recipe(tmp_path):
    RunFolder.at(tmp_path).claim(settings(), MAY_CHANGE, resume=True)
    RunFolder.at(tmp_path).claim(settings(lr=1.0), MAY_CHANGE, resume=True)


def test_starting_anew_over_a_checkpoint_raises_config_error(tmp_path):
    with pytest.raises(ConfigError, match="resume_mode=disable would mix two runs"):
        saved(tmp_path, 3).claim(settings(), MAY_CHANGE, resume=False)


def test_a_run_is_finished_when_its_last_step_is_saved_and_logged(tmp_path):
    """Verl saves a step before it validates and logs it."""
    folder = saved(tmp_path, 5)
    assert not folder.finished(5)
    log(folder, 4)
    assert not folder.finished(5)
    log(folder, 5)
    assert folder.finished(5)
    assert not folder.finished(6)


def test_prune_removes_older_checkpoints_of_earlier_starts(tmp_path):
    for step in (1, 2, 3, 5):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
    (tmp_path / "global_step_4").mkdir()  # verl leaves the folder of a removed checkpoint
    (tmp_path / "global_step_of_mine").mkdir()
    folder = saved(tmp_path, 3)  # 5 was being written when the run was killed
    folder.prune(None)
    assert len(list(tmp_path.glob("global_step_*"))) == 6
    folder.prune(1, running=True)
    assert not (tmp_path / "global_step_2").exists() and (tmp_path / "global_step_5").exists()
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)
    folder.prune(2)
    assert sorted(path.name for path in tmp_path.glob("global_step_*")) == [
        "global_step_2",
        "global_step_3",
        "global_step_of_mine",
    ]
