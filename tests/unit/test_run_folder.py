"""Whether a folder's checkpoint belongs to the recipe at hand, and whether its run has ended."""

import json
from pathlib import Path

import pytest

from verl_agent.errors import ConfigError
from verl_agent.runs.folder import RL_IDENTITY, SFT_IDENTITY, RunFolder, check_resume, identity
from verl_agent.types import TaskItem

TASKS = [TaskItem("toy", "a"), TaskItem("toy", "b")]


def settings(lr: float = 1e-5, tasks: list[TaskItem] = TASKS) -> dict[str, object]:
    config = {"env": {"name": "toy"}, "actor_rollout_ref": {"actor": {"optim": {"lr": lr}}}}
    return identity(config, RL_IDENTITY, tasks)


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
def test_a_checkpoint_in_another_folder_is_not_gone_on_from(trainer, message):
    """Nothing beside it says that it is of this recipe and of this algorithm."""
    with pytest.raises(ConfigError) as error:
        check_resume(trainer, "model.path")
    assert str(error.value).startswith(message) and "name it in model.path" in str(error.value)


def test_the_same_recipe_goes_on(tmp_path):
    RunFolder.at(tmp_path).check_identity(settings(), resume=True)
    saved(tmp_path, 3).check_identity(settings(), resume=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            settings(lr=2e-5),
            r"step 3 of another recipe: .*optim.lr changed \(.* was 1e-05, is 2e-05",
        ),
        (settings(tasks=TASKS[:1]), r"of another recipe: ids of env.train_tasks changed"),
    ],
)
def test_another_recipe_in_the_same_folder_is_refused(tmp_path, changed, message):
    RunFolder.at(tmp_path).check_identity(settings(), resume=True)
    with pytest.raises(ConfigError, match=message):
        saved(tmp_path, 3).check_identity(changed, resume=True)


def test_a_checkpoint_that_nothing_describes_is_not_gone_on_from(tmp_path):
    """Such as one of plain verl, whose folders look the same: it may be of any algorithm."""
    with pytest.raises(ConfigError, match=r"step 3 of a run whose run.json is missing"):
        saved(tmp_path, 3).check_identity(settings(), resume=True)
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("key", ["algorithm.adv_estimator", "actor_rollout_ref.actor.optim"])
def test_another_algorithm_is_another_recipe(tmp_path, key):
    assert key in RL_IDENTITY
    RunFolder.at(tmp_path).check_identity({key: "grpo"}, resume=True)
    with pytest.raises(ConfigError, match=rf"{key} changed \(.* was 'grpo', is 'rloo'"):
        saved(tmp_path, 3).check_identity({key: "rloo"}, resume=True)


def test_a_folder_without_a_checkpoint_takes_any_recipe(tmp_path):
    RunFolder.at(tmp_path).check_identity(settings(), resume=True)
    RunFolder.at(tmp_path).check_identity(settings(lr=1.0), resume=True)


def test_starting_anew_over_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="resume_mode=disable would mix two runs"):
        saved(tmp_path, 3).check_identity(settings(), resume=False)


def test_a_warm_start_is_known_by_its_tasks_too():
    config = {"env": {"train_tasks": "ids.txt"}, "model": {"path": "m"}}
    assert identity(config, SFT_IDENTITY, TASKS) != identity(config, SFT_IDENTITY, TASKS[:1])


def test_a_run_has_ended_when_its_last_step_is_saved_and_logged(tmp_path):
    """Verl saves a step before it validates and logs it; a run that is killed in between still owes both."""
    folder = saved(tmp_path, 5)
    assert not folder.finished(5)
    log(folder, 4)
    assert not folder.finished(5)
    log(folder, 5)
    assert folder.finished(5)
    assert not folder.finished(6)


def test_checkpoints_of_earlier_starts_are_pruned_and_the_last_complete_ones_stay(tmp_path):
    for step in (1, 2, 3, 5):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
    (tmp_path / "global_step_4").mkdir()  # what verl leaves of a checkpoint that it removed
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
