"""Resolution of model paths to weights, and the errors of paths without weights."""

import json
import os
import tempfile
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from verl_agent.errors import ConfigError
from verl_agent.models.resolve import parameters, resolve_checkpoint, resolve_model, weights_hash


def model(folder: Path, weights: str | None = "model.safetensors") -> Path:
    """Create a folder that looks like a saved model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if weights:
        (folder / weights).write_text("")
    return folder


@pytest.mark.parametrize("weights", ["model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"])
def test_a_model_folder_resolves_to_itself(tmp_path, weights):
    folder = model(tmp_path / "model", weights)
    assert resolve_model(str(folder)) == str(folder)


@pytest.mark.parametrize("inside", ["actor/huggingface", "huggingface"])
def test_a_checkpoint_of_either_trainer_resolves_to_its_weights(tmp_path, inside):
    weights = model(tmp_path / "global_step_5" / inside)
    assert resolve_checkpoint(tmp_path / "global_step_5") == weights


def test_a_run_resolves_to_the_checkpoint_that_its_tracker_names(tmp_path):
    for step in (5, 10):
        model(tmp_path / f"global_step_{step}/actor/huggingface")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5\n")
    assert resolve_checkpoint(tmp_path) == tmp_path / "global_step_5/actor/huggingface"


@pytest.mark.parametrize("tracker", [None, "20"])
def test_a_run_without_a_valid_tracker_resolves_to_its_highest_step(tmp_path, tracker):
    for step in (9, 10):
        model(tmp_path / f"global_step_{step}/huggingface")
    if tracker:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(tracker)
    assert resolve_checkpoint(tmp_path) == tmp_path / "global_step_10/huggingface"


def saved(file: Path, **sizes: int) -> None:
    """Write a file of safetensors with flat tensors of these sizes."""
    save_file({name: np.zeros(size, np.float32) for name, size in sizes.items()}, file)


def test_weights_in_a_second_layout_are_counted_once(tmp_path):
    """Mistral's folders have them as `consolidated.safetensors` too."""
    folder = model(tmp_path / "model", weights=None)
    saved(folder / "consolidated.safetensors", all=30)
    saved(folder / "model-00001-of-00002.safetensors", a=10)
    saved(folder / "model-00002-of-00002.safetensors", b=20)
    index = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert parameters(folder) == 30
    small = model(tmp_path / "small", weights=None)
    saved(small / "consolidated.safetensors", all=30)
    saved(small / "model.safetensors", all=30)
    assert parameters(small) == 30


def test_the_hash_of_weights_depends_on_the_files_that_are_loaded(tmp_path):
    folder = model(tmp_path / "model")
    before = weights_hash(str(folder))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "consolidated.safetensors").write_text("more")
    os.utime(folder / "model.safetensors", (1, 1))
    assert weights_hash(str(folder)) == before
    (folder / "model.safetensors").write_text("others")
    assert weights_hash(str(folder)) != before
    assert weights_hash("owner/model") == ""


def test_a_checkpoint_without_weights_names_the_setting_that_saves_them(tmp_path):
    model(tmp_path / "global_step_2/actor/huggingface", weights=None)
    with pytest.raises(
        ConfigError, match=r"^model\.path='.*global_step_2/actor/huggingface has no weights.*`hf_model` to"
    ):
        resolve_model(str(tmp_path), key="model.path")


def test_a_model_folder_without_weights_raises_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"has no weights \(\*\.safetensors or pytorch_model\*\.bin\)\.$"):
        resolve_model(str(model(tmp_path / "model", weights=None)))


@pytest.mark.parametrize("inside", [[], ["global_step_3/actor"]])
def test_an_empty_folder_raises_config_error(tmp_path, inside):
    for folder in inside:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"neither a model folder .* nor a checkpoint .* nor a run"):
        resolve_model(str(tmp_path))


def test_a_hub_id_is_returned_unchanged():
    assert resolve_model("Qwen/Qwen2.5-3B-Instruct") == "Qwen/Qwen2.5-3B-Instruct"


@pytest.mark.parametrize("path", ["runs/never_was", "./absent/model", "absent", "/absent/model"])
def test_a_missing_path_raises_config_error(path):
    with pytest.raises(ConfigError, match=r"^actor_rollout_ref\.model\.path='.*' does not exist"):
        resolve_model(path)


def test_a_missing_path_beside_folders_of_other_users_raises_config_error():
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        (closed := Path(root, "closed")).mkdir(mode=0o700)
        try:
            if user == 0:
                os.seteuid(65534)  # root may read every folder
            else:
                closed.chmod(0)
            for path in (f"{root}/absent/model", f"{root}/closed/model"):
                with pytest.raises(ConfigError, match="does not exist"):
                    resolve_model(path)
        finally:
            os.seteuid(user)
            closed.chmod(0o700)


def test_a_missing_checkpoint_names_the_steps_of_its_run(tmp_path):
    for step in (5, 10):
        (tmp_path / f"run/global_step_{step}").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"run has the steps 5, 10: \S+/run/global_step_10\. Allowed: the folder"):
        resolve_model(str(tmp_path / "run/global_step_7"))


@pytest.mark.parametrize(
    ("path", "suggestion"), [("orcale", "oracle"), ("smollm2", "smollm2-135m"), ("warm_strat", "warm_start")]
)
def test_a_misspelt_path_names_the_nearest_one(tmp_path, path, suggestion):
    (tmp_path / "warm_start").mkdir()
    with chdir(tmp_path), pytest.raises(ConfigError, match=rf"Did you mean '{suggestion}'\? .*'oracle'"):
        resolve_model(path, policies=["oracle"])


def test_a_missing_warm_start_is_named_as_another_run_and_not_mistaken_for_the_run_that_begins(tmp_path):
    (tmp_path / "runs/textcraft_sglang/logs").mkdir(parents=True)
    with chdir(tmp_path), pytest.raises(ConfigError, match=r"does not exist\. Another run writes it: the first lines"):
        resolve_model("runs/textcraft_sft_cpu")


def test_a_path_below_an_existing_folder_is_not_a_hub_id(tmp_path):
    (tmp_path / "outputs").mkdir()
    with chdir(tmp_path), pytest.raises(ConfigError, match="does not exist"):
        resolve_model("outputs/warm_start")
