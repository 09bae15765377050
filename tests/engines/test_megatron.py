"""Tests that verl's Megatron engine on the CPU computes the same on one rank and in each layout of two.

All computation is in float32. Differences are sums in another order.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support.composing import recipe
from tests.support.engines import batch_of, gradients, new_engine, policy_loss, relative_difference
from tests.support.megatron_rank import ROWS, UNEVEN
from tests.support.megatron_ranks import LAYOUTS, RECIPE, run_ranks
from tests.support.models import write_qwen2
from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import finish_checkpoint
from verl_agent.platform.cpu_engine import CpuLanguageEngine
from verl_agent.runs.identity import SETTINGS_FILE
from verl_agent.training.preflight.ranks import check_layout_of_checkpoint
from verl_agent.training.run import ReinforcementLearning

TOLERANCE = 1e-5
ONE_RANK = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
TWO = [layout for layout in LAYOUTS if layout != "tp1"]

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2(tmp_path_factory.mktemp("model"), ["go up"], 300)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what the ranks of each layout computed; each made three updates and saved after the first."""
    folder = tmp_path_factory.mktemp("ranks")
    job = {"gradients": True, "updates": 3}
    jobs = {name: {"layout": name, "save": str(folder / f"{name}_checkpoint"), **job} for name in LAYOUTS}
    return run_ranks(folder, model, jobs)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory, model: Path, results) -> dict[str, list[dict[str, Any]]]:
    """Return what ranks of each layout computed that loaded a checkpoint and made two updates, by both layouts."""
    pairs = [*zip(LAYOUTS, LAYOUTS, strict=True), ("dp2", "tp1"), ("tp1", "dp2")]
    jobs = {
        f"{wrote} to {reads}": {"layout": reads, "load": results[wrote][0]["checkpoint"], "updates": 2}
        for wrote, reads in pairs
    }
    return run_ranks(tmp_path_factory.mktemp("resumed"), model, jobs)


def rows_of(ranks: list[dict[str, Any]], key: str = "log_probs") -> list[Tensor]:
    """Return the values of each row from the rank that has it."""
    found = {index: values for rank in ranks for index, values in rank[key].items()}
    return [found[index] for index in range(len(ROWS))]


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def share_that_differs(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Return the share of weights that differ by more than a tenth of a learning rate."""
    far = sum(int(((left[name] - right[name]).abs() > 1e-3).sum()) for name in left)
    return far / sum(weight.numel() for weight in left.values())


def log_probs_of_transformers(model: Path, weights: dict[str, Tensor] | None = None) -> list[Tensor]:
    """Return float `(T - 1,)` for each row: the log-prob of each token but the first."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if weights is not None:
        reference.load_state_dict(weights)
    rows = []
    for row in ROWS:
        ids = torch.tensor(row.prompt_ids + row.response_ids)
        with torch.no_grad():
            every = reference(ids[None]).logits[0].log_softmax(-1)
        rows.append(every[:-1].gather(1, ids[1:, None])[:, 0])
    return rows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probs_are_those_of_transformers(results, model, layout):
    for actual, expected in zip(rows_of(results[layout]), log_probs_of_transformers(model), strict=True):
        assert torch.allclose(actual[:-1], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trained_and_exported_weights_give_the_log_probs_of_the_engine(results, model, layout):
    expected = log_probs_of_transformers(model, results[layout][0]["weights"])
    before = rows_of(results[layout])
    for row, actual in enumerate(rows_of(results[layout], "log_probs_after")):
        assert torch.allclose(actual[:-1], expected[row], rtol=0, atol=TOLERANCE)
        assert (actual - before[row]).abs().max() > 0.1


@pytest.mark.parametrize(("key", "rows"), [("gradients", ROWS), ("uneven_gradients", UNEVEN)])
def test_gradients_of_one_rank_are_those_of_fsdp(results, model, key, rows):
    engine = new_engine(CpuLanguageEngine, model, "float32")
    expected, _ = gradients(engine, batch_of(rows), policy_loss())
    assert relative_difference(results["tp1"][0][key], expected) < TOLERANCE


@pytest.mark.parametrize("layout", TWO)
@pytest.mark.parametrize("key", ["gradients", "uneven_gradients"])
def test_two_ranks_have_the_gradients_of_one(results, layout, key):
    for rank in results[layout]:
        assert relative_difference(rank[key], results["tp1"][0][key]) < TOLERANCE


@pytest.mark.parametrize("layout", TWO)
def test_two_ranks_make_the_updates_of_one(results, layout):
    """Adam divides by the size of a gradient, so a tiny one may turn a difference in rounding into a whole step."""
    assert share_that_differs(results["tp1"][0]["weights"], results[layout][0]["weights"]) < 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_engine_makes_the_same_updates(results, resumed, layout):
    weights = resumed[f"{layout} to {layout}"][0]["weights"]
    assert largest_difference(weights, results[layout][0]["weights"]) < TOLERANCE


@pytest.mark.parametrize(("wrote", "reads"), [("dp2", "tp1"), ("tp1", "dp2")])
def test_the_number_of_data_parallel_ranks_may_change(results, resumed, wrote, reads):
    weights = resumed[f"{wrote} to {reads}"][0]["weights"]
    assert share_that_differs(weights, results[wrote][0]["weights"]) < 1e-3


@pytest.mark.parametrize(
    ("wrote", "key"), [("tp2", "tensor_model_parallel_size"), ("pp2", "pipeline_model_parallel_size")]
)
def test_a_checkpoint_of_another_layout_raises_config_error(results, wrote, key):
    folder = Path(results[wrote][0]["checkpoint"])
    with pytest.raises(ConfigError, match=rf"^megatron\.{key}=1 cannot resume .* written with 2:"):
        check_layout_of_checkpoint(folder, "megatron", ONE_RANK)
    check_layout_of_checkpoint(folder, "megatron", ONE_RANK | {key: 2})


def test_resume_with_another_layout_raises_config_error_before_ray_starts(results, model, tmp_path):
    run_folder = tmp_path / "run"
    (run_folder / "global_step_1").mkdir(parents=True)
    (run_folder / "global_step_1" / "actor").symlink_to(results["tp2"][0]["checkpoint"])
    finish_checkpoint(run_folder / "global_step_1")
    (run_folder / SETTINGS_FILE).write_text(json.dumps({"command": "train"}))
    recipe_file = tmp_path / "recipe.yaml"
    recipe_file.write_text(RECIPE.format(model=model, layout=LAYOUTS["tp1"][1]))
    config = recipe(recipe_file, "model_engine=megatron", "episode.max_tokens_per_turn=16")
    config.trainer.default_local_dir = str(run_folder)
    message = r"^actor_rollout_ref\.actor\.megatron\.tensor_model_parallel_size=1 cannot resume .* written with 2:"
    with pytest.raises(ConfigError, match=message):
        ReinforcementLearning(RunPlan.read(config)).run()


@pytest.mark.parametrize("wrote", ["tp1", "dp2"])
def test_a_checkpoint_of_data_parallel_ranks_passes_the_check_of_layouts(results, wrote):
    folder = Path(results[wrote][0]["checkpoint"])
    with pytest.raises(ConfigError, match=r"pipeline_model_parallel_size=2 .* written with 1:"):
        check_layout_of_checkpoint(folder, "megatron", ONE_RANK | {"pipeline_model_parallel_size": 2})
    check_layout_of_checkpoint(folder, "megatron", ONE_RANK)
