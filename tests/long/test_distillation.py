"""Runs of a tiny model that learns from a teacher, alone, with rewards, with LoRA and with asynchronous rollout.

Each start takes about a minute on two cores.
"""

from pathlib import Path

import pytest

from tests.support.models import write_byte_model
from tests.support.training_runs import last_step, prepare, run_to_end
from verl_agent.trace.metrics_log import read_metrics

STEPS = 3
PEAK = 4.0
"""Factor of a random teacher's logits, which makes some tokens much more probable than others."""
COMMON = [
    "+overlay/algorithm=distill",
    *("horizon.max_turns=[1,2]", "horizon.steps_per_stage=1", "actor_rollout_ref.actor.optim.lr=3.0e-3"),
    *("trainer.save_freq=1", f"trainer.total_training_steps={STEPS}", "trainer.max_actor_ckpt_to_keep=9"),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def write_teacher(folder: Path) -> Path:
    """Write a model with the tokenizer of `prepare` and other sizes."""
    from transformers import AutoModelForCausalLM

    texts = ["Guess a whole number from 1 to 12. Higher. Lower."]
    write_byte_model(folder, texts, vocabulary=300, hidden_size=64, num_hidden_layers=2)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.get_input_embeddings().weight.data *= PEAK
    model.save_pretrained(folder)
    return folder


def metrics_of(run: Path, log: int = -1) -> dict[int, dict[str, float]]:
    """Return the metrics of one start, by step."""
    return read_metrics(sorted(run.glob("metrics/*.jsonl"))[log:][:1])


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["distillation.distillation_loss.use_task_rewards=true", "distillation.distillation_loss.loss_max_clamp=5.0"],
        ["actor_rollout_ref.model.lora_rank=8"],
        ["+overlay/rollout=partial"],
    ],
    ids=["alone", "with_rewards", "lora", "partial"],
)
def test_a_run_learns_from_its_teacher_under_a_growing_limit_and_resumes_equal(tmp_path, changes):
    teacher = write_teacher(tmp_path / "teacher")
    path = f"distillation.teacher_models.teacher_model.model_path={teacher}"
    command, run = prepare(tmp_path, [*COMMON, *changes, path]), tmp_path / "run"
    run_to_end(tmp_path, command)
    first = metrics_of(run)
    assert all(first[step]["distillation/reverse_kl"] > 0 for step in (1, 2, 3))
    assert [first[step]["episode/horizon"] for step in (1, 2, 3)] == [1, 2, 2]
    assert all(first[step]["actor/grad_norm"] > 0 for step in (1, 2, 3))

    for item in sorted((run / f"global_step_{STEPS}").rglob("*"), reverse=True):
        item.rmdir() if item.is_dir() else item.unlink()
    (run / f"global_step_{STEPS}").rmdir()
    (run / "latest_checkpointed_iteration.txt").write_text(str(STEPS - 1))
    run_to_end(tmp_path, command)
    assert last_step(run) == STEPS
    again = metrics_of(run)[STEPS]
    if "+overlay/rollout=partial" not in changes:  # its episodes in flight begin anew
        for name in ("distillation/reverse_kl", "actor/grad_norm", "actor/pg_loss"):
            assert again[name] == pytest.approx(first[STEPS][name], rel=1e-5)
