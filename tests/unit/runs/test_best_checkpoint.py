"""Best checkpoint of a run: it stays when the trainer removes older checkpoints."""

import json
import shutil
from pathlib import Path

import pytest

from verl_agent.models.checkpoints import begin_checkpoint, finish_checkpoint
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.runs.best_checkpoint import Best, BestKeeper, keep_best, read_best, validation_result
from verl_agent.runs.folder import RunFolder

SUCCESS = "val-core/toy/success/mean@2"


def save(run: Path, step: int, inside: str = "actor/", weights: str = "weights", **metrics: float) -> None:
    """Write the files of a saved step: a checkpoint, its manifest and tracker, and a line of metrics."""
    folder = run / f"global_step_{step}" / inside
    (folder / "huggingface").mkdir(parents=True)
    (folder / "huggingface/config.json").write_text("{}")
    if weights:
        (folder / "huggingface/model.safetensors").write_text(f"{weights} {step}")
    for name in ("model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt", "extra_state_world_size_1_rank_0.pt"):
        (folder / name).write_text(f"{name} {step}")
    finish_checkpoint(run / f"global_step_{step}")
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))
    (run / "metrics").mkdir(exist_ok=True)
    with (run / "metrics/a.jsonl").open("a") as log:
        log.write(json.dumps({"step": step, "data": metrics}) + "\n")


def test_the_best_checkpoint_stays_after_pruning(tmp_path):
    for step, success in enumerate([0.1, 0.4, 0.3, 0.4], start=1):
        save(tmp_path, step, **{SUCCESS: success})
        keep_best(tmp_path)
        if step > 1:
            shutil.rmtree(tmp_path / f"global_step_{step - 1}")
    assert read_best(tmp_path) == Best(2, "success", 0.4)
    assert (resolve_checkpoint(tmp_path / "best") / "model.safetensors").read_text() == "weights 2"
    assert sorted(path.name for path in tmp_path.glob("best*")) == ["best"]


def test_a_kill_while_the_best_checkpoint_is_replaced_does_not_lose_it(tmp_path):
    save(tmp_path, 1, **{SUCCESS: 0.4})
    keep_best(tmp_path)
    (tmp_path / "best").rename(tmp_path / "best.old")
    shutil.rmtree(tmp_path / "global_step_1")
    save(tmp_path, 2, **{SUCCESS: 0.3})
    assert keep_best(tmp_path) == read_best(tmp_path) == Best(1, "success", 0.4)
    assert (resolve_checkpoint(tmp_path / "best") / "model.safetensors").read_text() == "weights 1"


def test_the_best_checkpoint_of_megatron_is_in_the_same_place(tmp_path):
    save(tmp_path, 1, inside="actor/model/", **{SUCCESS: 0.4})
    assert resolve_checkpoint(tmp_path) == tmp_path / "global_step_1/actor/model/huggingface"
    keep_best(tmp_path)
    assert sorted(path.name for path in (tmp_path / "best").rglob("*.*")) == [
        "best.json",
        "config.json",
        "manifest.json",
        "model.safetensors",
    ]
    assert resolve_checkpoint(tmp_path / "best") == tmp_path / "best/huggingface"


def test_results_on_the_test_tasks_do_not_choose_the_best_checkpoint(tmp_path):
    test = SUCCESS.replace("val-", "test-")
    for step, (chosen_by, tested) in enumerate([(0.4, 0.1), (0.3, 0.9)], start=1):
        save(tmp_path, step, **{SUCCESS: chosen_by, test: tested})
    assert keep_best(tmp_path) == Best(1, "success", 0.4)


def test_a_lower_loss_is_better(tmp_path):
    for step, loss in enumerate([0.9, 0.5, 0.7], start=1):
        save(tmp_path, step, inside="", **{"val/loss": loss})
    assert keep_best(tmp_path) == Best(2, "loss", 0.5)
    assert (resolve_checkpoint(tmp_path / "best") / "model.safetensors").read_text() == "weights 2"


def test_only_weights_are_kept_as_hard_links(tmp_path):
    save(tmp_path, 1, **{SUCCESS: 0.1})
    keep_best(tmp_path)
    files = sorted(path.relative_to(tmp_path / "best").as_posix() for path in (tmp_path / "best").rglob("*.*"))
    assert files == ["best.json", "huggingface/config.json", "huggingface/model.safetensors", "manifest.json"]
    assert (tmp_path / "best/huggingface/model.safetensors").stat().st_nlink == 2


def test_shards_are_kept_if_the_trainer_saved_no_merged_weights(tmp_path):
    save(tmp_path, 1, weights="", **{SUCCESS: 0.1})
    keep_best(tmp_path)
    files = sorted(path.relative_to(tmp_path / "best").as_posix() for path in (tmp_path / "best").rglob("*.*"))
    assert files == ["best.json", "huggingface/config.json", "manifest.json", "model_world_size_1_rank_0.pt"]


@pytest.mark.parametrize("validated", [{}, {"actor/loss": 1.0}])
def test_without_a_validation_nothing_is_kept(tmp_path, validated):
    save(tmp_path, 1, **validated)
    assert keep_best(tmp_path) is None
    assert not (tmp_path / "best").exists()


def test_an_incomplete_checkpoint_is_not_kept(tmp_path):
    save(tmp_path, 1, **{SUCCESS: 0.1})
    save(tmp_path, 2, **{SUCCESS: 0.9})
    begin_checkpoint(tmp_path / "global_step_2")
    assert keep_best(tmp_path) == Best(1, "success", 0.1)


def test_validation_result_is_the_mean_over_environments():
    values = {SUCCESS: 0.2, "val-core/other/success/mean@2": 0.6, "val-core/toy/reward/mean@2": 5.0}
    assert validation_result(3, values) == Best(3, "success", pytest.approx(0.4))


def test_the_keeper_follows_a_running_trainer(tmp_path):
    folder = RunFolder.at(tmp_path)
    keeper = BestKeeper(folder)
    keeper.poll()
    assert read_best(tmp_path) is None
    for step, success in ((1, 0.2), (2, 0.7), (3, 0.5)):
        save(tmp_path, step)
        keeper.poll()  # verl has saved the step, and not yet logged it
        with folder.metrics.open("a") as log:
            log.write(json.dumps({"step": step, "data": {SUCCESS: success}}) + "\n")
        keeper.poll()
    assert read_best(tmp_path) == Best(2, "success", 0.7)
