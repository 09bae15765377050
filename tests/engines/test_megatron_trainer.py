"""Training runs with Megatron on the CPU: rollout, log-probs, update, weight transfer, checkpoint, resume, export."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.models import write_qwen2
from tests.support.training_runs import (
    KILLED_STEPS,
    check_killed_run,
    command_line,
    kill_after_checkpoint,
    run_to_end,
)
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.runs.model_export import export_model
from verl_agent.trace.metrics_log import read_metrics

RECIPE = """
defaults: [agent_grpo, cpu, _self_]
env: {name: guess_number, train_tasks: small_train, eval_tasks: small_test, options: {tolerant: true}}
agent: {name: raw}
horizon: {max_turns: [2]}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}
credit: {invalid_action_cost: 0.1}
data: {train_batch_size: 4, max_prompt_length: 256, max_response_length: 256}
algorithm: {rollout_correction: {bypass_mode: false}}
actor_rollout_ref:
  actor: {use_kl_loss: false, ppo_mini_batch_size: 2, optim: {lr: 1.0e-3}}
  rollout: {n: 4, max_num_seqs: 16, dtype: float32, log_prob_micro_batch_size_per_gpu: 4}
trainer: {save_freq: 1, test_freq: -1, val_before_train: false, max_actor_ckpt_to_keep: 1}
"""
FLOAT32 = {
    "megatron": "actor_rollout_ref.actor.megatron.dtype=float32",
    "dp": "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
}
TWO_RANKS = "+overlay/size=2ranks_cpu"
LAYOUTS = {
    "tp1": [],
    "tp2": [TWO_RANKS, "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"],
    "pp2": [TWO_RANKS, "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2"],
    "dp2": [TWO_RANKS],
}
SAME = "training/rollout_actor_probs_pearson_corr"
"""Metric that compares the engine's probabilities of the sampled tokens with the trainer's."""

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = ["Guess a whole number from 1 to 12. Higher. Lower."]
    return write_qwen2(tmp_path_factory.mktemp("qwen2"), texts, vocabulary=300)


def prepared(root: Path, model: Path, steps: int, *overrides: str, engine: str = "megatron") -> list[str]:
    """Write the recipe and return the command line that trains, or resumes and trains, to a step."""
    root.mkdir(exist_ok=True)
    (root / "recipe.yaml").write_text(RECIPE)
    folders = [f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={root / 'run'}"]
    chosen = [f"model_engine={engine}", FLOAT32[engine], f"trainer.total_training_steps={steps}"]
    return command_line("train", root, "recipe", *chosen, *overrides, *folders)


def metrics_of(run: Path) -> dict[int, dict[str, float]]:
    return read_metrics(sorted(run.glob("metrics/*.jsonl")))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_run_resumes_with_the_same_tasks_and_exports(tmp_path: Path, model: Path, layout: str):
    run = tmp_path / "run"
    command = prepared(tmp_path, model, KILLED_STEPS, *LAYOUTS[layout])
    kill_after_checkpoint(tmp_path, command, 1)
    before = load_file(resolve_checkpoint(run) / "model.safetensors")
    run_to_end(tmp_path, command)
    check_killed_run(run)
    # Each step but the first plays with weights that were sent to the engine.
    assert all(values[SAME] > 0.999 and values["actor/grad_norm"] > 0 for values in metrics_of(run).values())
    weights = load_file(export_model(run, tmp_path / "exported") / "model.safetensors")
    assert weights.keys() == load_file(model / "model.safetensors").keys() == before.keys()
    assert all((weights[name] != before[name]).any() for name in weights if weights[name].dim() > 1)


def test_the_first_gradient_is_that_of_fsdp(tmp_path: Path, model: Path):
    """One mini-batch: Adam's first step takes little but the signs of gradients, so that a second one differs more."""
    whole = "actor_rollout_ref.actor.ppo_mini_batch_size=4"
    first = {}
    for engine, layout in {"dp": [], "megatron": LAYOUTS["tp2"]}.items():
        root = tmp_path / engine
        run_to_end(root, prepared(root, model, 1, whole, *layout, engine=engine))
        first[engine] = metrics_of(root / "run")[1]
    for name in ("actor/grad_norm", "actor/pg_loss", "actor/entropy_loss", "critic/score/mean"):
        assert first["megatron"][name] == pytest.approx(first["dp"][name], abs=1e-5), name
