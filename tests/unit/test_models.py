"""A model path finds the weights that it stands for, or says what is wrong with it."""

from pathlib import Path

import pytest

from verl_agent.errors import ConfigError
from verl_agent.models.resolve import resolve_checkpoint, resolve_model


def model(folder: Path, weights: str | None = "model.safetensors") -> Path:
    """A folder that looks like a saved model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if weights:
        (folder / weights).write_text("")
    return folder


@pytest.mark.parametrize("weights", ["model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_a_model_folder_is_itself(tmp_path, weights):
    folder = model(tmp_path / "model", weights)
    assert resolve_model(str(folder)) == str(folder)


@pytest.mark.parametrize("inside", ["actor/huggingface", "huggingface"])
def test_a_checkpoint_of_either_trainer_holds_its_weights(tmp_path, inside):
    weights = model(tmp_path / "global_step_5" / inside)
    assert resolve_checkpoint(tmp_path / "global_step_5") == weights


def test_a_run_stands_for_the_checkpoint_that_its_tracker_names(tmp_path):
    for step in (5, 10):
        model(tmp_path / f"global_step_{step}/actor/huggingface")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5\n")
    assert resolve_checkpoint(tmp_path) == tmp_path / "global_step_5/actor/huggingface"


@pytest.mark.parametrize("tracker", [None, "20"])
def test_a_run_whose_tracker_is_missing_or_wrong_stands_for_its_highest_step(tmp_path, tracker):
    for step in (9, 10):
        model(tmp_path / f"global_step_{step}/huggingface")
    if tracker:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(tracker)
    assert resolve_checkpoint(tmp_path) == tmp_path / "global_step_10/huggingface"


def test_a_checkpoint_without_weights_names_the_setting_that_saves_them(tmp_path):
    model(tmp_path / "global_step_2/actor/huggingface", weights=None)
    with pytest.raises(
        ConfigError, match=r"^model\.path='.*global_step_2/actor/huggingface has no weights.*`hf_model` to"
    ):
        resolve_model(str(tmp_path), key="model.path")


def test_a_model_folder_without_weights_is_refused_too(tmp_path):
    with pytest.raises(ConfigError, match=r"has no weights \(\*\.safetensors or pytorch_model\*\.bin\)\.$"):
        resolve_model(str(model(tmp_path / "model", weights=None)))


@pytest.mark.parametrize("inside", [[], ["global_step_3/actor"]])
def test_a_folder_with_nothing_in_it_is_refused(tmp_path, inside):
    for folder in inside:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no model folder .* no checkpoint .* no run"):
        resolve_model(str(tmp_path))


def test_a_hub_id_is_passed_on():
    assert resolve_model("Qwen/Qwen2.5-3B-Instruct") == "Qwen/Qwen2.5-3B-Instruct"


@pytest.mark.parametrize("path", ["runs/never_was", "./absent/model", "absent", "/absent/model"])
def test_a_path_that_does_not_exist_is_no_hub_id(path):
    with pytest.raises(ConfigError, match=r"^actor_rollout_ref\.model\.path='.*' does not exist"):
        resolve_model(path)
