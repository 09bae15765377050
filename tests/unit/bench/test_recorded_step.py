"""Tests of a run's step as its folder records it: the work of its rows, and what is missing in a folder."""

import json
import shlex

import pytest

from tests import ROOT
from tests.bench.recorded_step import Batches, Rows, Step, UnusableRunError, Work, pairs, requests
from verl_agent.trace.token_files import TokenRow, write_tokens

ROWS = Rows(
    tokens=[[1, 2, 3, 4, 5, 6], [1, 2, 7, 8]],
    masks=[[0, 0, 1, 0, 1, 1], [0, 0, 1, 1]],
    prompts=[2, 2],
    groups=["a", "a"],
)


def test_requests_ask_for_each_reply_with_all_tokens_in_front_of_it():
    assert requests(ROWS.tokens, ROWS.masks) == [[([1, 2], 1), ([1, 2, 3, 4], 2)], [([1, 2], 2)]]
    assert ROWS.turns == 2


def test_each_token_of_a_rollout_is_computed_once_and_a_prompt_once_for_its_group():
    positions = [(row, place) for row, mask in enumerate(ROWS.masks) for place in range(len(mask))]
    written = [(row, place) for row, place in positions if ROWS.masks[row][place]]
    repeated = [(1, 0), (1, 1)]  # the prompt
    read = [(row, place) for row, place in positions if (row, place) not in [*written, *repeated]]
    assert ROWS.read == Work(tokens=len(read), pairs=sum(place + 1 for _, place in read), logits=0)
    assert ROWS.positions == sum(place for _, place in written) and ROWS.written == len(written)
    assert pairs([3, 1]) == 3 + 2 + 1 + 1


def test_mini_batches_hold_all_rows_in_order():
    assert Batches(mini=2, epochs=1, micro=2, scored=8).mini_batches([1, 2, 3]) == [[1, 2], [3]]


SIZES = (
    "data.train_batch_size=1",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_epochs=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=6",
    "+ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS='3'",
)


def write_run(folder, recipe, *overrides):
    """Write the lock file of a run, which names its command."""
    place = (ROOT / "recipes" / recipe).resolve()
    command = ["python", "-m", "verl_agent.commands.train", "--config-dir", place.parent, "--config-name", place.name]
    line = shlex.join(map(str, [*command, *overrides]))
    (folder / ".lock").write_text(f"process 1 on vm, started 2026-12-01 04:09:39 UTC: {line}\n")


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run whose second step has two of two episodes."""
    write_run(tmp_path, "guess_number/grpo_cpu", *SIZES)
    actor = {"ppo_mini_batch_size": 1, "ppo_epochs": 2}
    config = {"actor_rollout_ref": {"actor": actor, "rollout": {"n": 2}}, "data": {"train_batch_size": 1}}
    (tmp_path / "run.json").write_text(json.dumps({"version": 2, **config}))
    rows = [
        TokenRow("a", sample, 0, 2, prompt, ids, [bool(one) for one in mask], [one - 1 for one in mask], {})
        for sample, (ids, mask, prompt) in enumerate(zip(ROWS.tokens, ROWS.masks, ROWS.prompts, strict=True))
    ]
    write_tokens(tmp_path / "tokens" / "step_2.parquet", rows, str)
    (tmp_path / "metrics").mkdir()
    line = {"step": 2, "data": {"timing_s/gen": 3.0, "timing_s/update_actor": 4.0}}
    (tmp_path / "metrics" / "a.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "global_step_2" / "actor" / "huggingface").mkdir(parents=True)
    return tmp_path


def test_the_last_step_with_tokens_is_read_with_the_settings_of_its_run(run):
    step = Step.of(run, None)
    assert step.rows == ROWS and step.timing == {"gen": 3.0, "update_actor": 4.0}
    assert (step.number, step.threads, step.batches) == (2, 3, Batches(mini=2, epochs=2, micro=4, scored=6))


@pytest.mark.parametrize(
    ("missing", "number"),
    [
        ("tokens/step_2.parquet", None),
        ("tokens", 5),
        ("metrics/a.jsonl", None),
        (".lock", None),
        ("run.json", None),
    ],
)
def test_a_folder_that_lacks_something_is_named_with_the_next_step(run, missing, number):
    if (run / missing).is_file():
        (run / missing).unlink()
    with pytest.raises(UnusableRunError, match=f"{run / missing.partition('/')[0]}.*make bench-roofline"):
        Step.of(run, number)


def test_a_step_without_all_episodes_is_unusable(run):
    write_run(run, "guess_number/grpo_cpu", *SIZES[1:], "data.train_batch_size=16")
    config = json.loads((run / "run.json").read_text())
    config["data"]["train_batch_size"] = config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] = 16
    (run / "run.json").write_text(json.dumps(config))
    with pytest.raises(UnusableRunError, match=r"has 2 of the step's 32 episodes.*record_tokens.groups"):
        Step.of(run, None)


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("guess_number/grpo_cpu", SIZES[1:], r"has data.train_batch_size=\d+, and .* was started with 1\."),
        ("guess_number/grpo_cpuu", (), "grpo_cpuu.yaml: Cannot find primary config 'grpo_cpuu'"),
        ("guess_number/grpo_cpu", ("data.sead=1",), "data.sead is not a setting"),
    ],
)
def test_a_recipe_that_is_not_the_one_of_the_run_is_named(run, recipe, overrides, message):
    write_run(run, recipe, *overrides)
    with pytest.raises(UnusableRunError, match=f"{message}.*make bench-roofline"):
        Step.of(run, None)


def test_a_lock_file_without_a_recipe_is_named(run):
    (run / ".lock").write_text("process 1 on vm, started 2026-12-01 04:09:39 UTC: python mine.py\n")
    with pytest.raises(UnusableRunError, match=r"\.lock names no recipe in 'python mine.py'"):
        Step.of(run, None)
