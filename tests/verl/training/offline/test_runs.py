"""Supervised training and DPO through verl on a tiny random model: killed, run again, and checked from outside."""

import json
import math
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.composing import recipe
from tests.support.episodes import talk
from tests.support.offline_runs import GUESSES, episodes, finished, kill_after, metrics, start, write_offline_recipes
from verl_agent.config.plan import OfflinePlan
from verl_agent.config.settings import read_env
from verl_agent.errors import ConfigError
from verl_agent.evaluation.imports.conversation import ImportSettings
from verl_agent.evaluation.imports.job import import_records
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.runs.model_export import export_model
from verl_agent.trace.record import EpisodeRecord
from verl_agent.training.offline.dpo import DPO
from verl_agent.training.offline.encoding import EpisodeEncoder
from verl_agent.training.offline.preferences import PreferenceSettings, make_pairs
from verl_agent.training.offline.run import Method, OfflineTraining
from verl_agent.training.offline.sft import SFT
from verl_agent.training.offline.sft_trainer import count_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with a model, episodes and recipes."""
    folder = tmp_path_factory.mktemp("offline")
    write_offline_recipes(folder)
    return folder


@pytest.fixture(scope="module")
def preferred(folder) -> Path:
    """Return the folder of a DPO run without interruptions."""
    run = folder / "runs/whole"
    finished(start(folder, "dpo", f"trainer.default_local_dir={run}"))
    return run


def loader(ranks: int, rank: int, workers: int = 0) -> StatefulDataLoader:
    """Return the loader of a rank as verl's SFT trainer makes it, with 20 rows in global batches of 4."""
    sampler = DistributedSampler(range(20), num_replicas=ranks, rank=rank, shuffle=True, drop_last=True)
    return StatefulDataLoader(range(20), batch_size=4 // ranks, sampler=sampler, drop_last=True, num_workers=workers)


@pytest.mark.parametrize(("before", "after", "workers"), [(1, 2, 0), (2, 1, 0), (2, 1, 2)])
def test_another_number_of_ranks_continues_with_the_next_rows(before, after, workers):
    batches = iter(first := loader(before, 0, workers))
    for _ in range(2):
        next(batches)
    state = first.state_dict()
    remaining = []
    for rank in range(after):
        resumed = loader(after, rank, workers)
        count_rows(state, resumed.batch_size)
        resumed.load_state_dict(state)
        remaining += [int(row) for batch in resumed for row in batch]
    order = [int(row) for batch in loader(1, 0) for row in batch]
    assert sorted(remaining) == sorted(order[8:])


def margin(model: Path) -> float:
    """Return the mean difference of log-probs between better and worse episodes in nats, in plain PyTorch."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    played = read_env({"env": {"name": "guess_number"}, "agent": {"name": "raw"}})
    encoder = EpisodeEncoder(tokenizer, "llama", played, max_length=96)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def score(record: EpisodeRecord) -> float:
        (row,) = encoder.encode(record)
        ids, written = row["input_ids"], row["loss_mask"].bool()
        with torch.no_grad():
            scores = policy(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        return scores[written[1:]].sum().item()

    pairs = make_pairs(episodes(), PreferenceSettings(records=["memory"]))
    return sum(score(pair.better) - score(pair.worse) for pair in pairs) / len(pairs)


def test_dpo_starts_at_the_reference_and_increases_the_margin(folder, preferred):
    steps = metrics(preferred)
    assert list(steps) == list(range(1, 13))
    assert steps[1]["train/loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert steps[1]["train/margin"] == pytest.approx(0, abs=1e-4)
    assert steps[12]["train/margin"] > 5
    assert steps[12]["train/accuracy"] == 1
    assert steps[12]["train/margin"] == pytest.approx(steps[12]["train/better"] - steps[12]["train/worse"], abs=1e-3)
    assert steps[12]["val/loss"] < steps[3]["val/loss"] < math.log(2)
    assert margin(resolve_checkpoint(preferred)) > margin(folder / "model") + 5


def test_the_best_checkpoint_is_kept(preferred):
    note = json.loads((preferred / "best/best.json").read_text())
    validated = {step: values["val/loss"] for step, values in metrics(preferred).items() if "val/loss" in values}
    assert sorted(validated) == [3, 6, 9, 12]
    assert note["step"] == min(validated, key=validated.__getitem__)
    assert (resolve_checkpoint(preferred / "best") / "model.safetensors").is_file()


def test_a_killed_dpo_run_ends_like_an_uninterrupted_one(folder, preferred):
    """One run is killed within an epoch; the other resumes after an epoch, with scores of another model."""
    run, boundary = folder / "runs/killed", folder / "runs/boundary"
    keep_all = "trainer.max_ckpt_to_keep=null"
    killed_after = kill_after(start(folder, "dpo", f"trainer.default_local_dir={run}", keep_all), run, 4)
    assert 4 <= killed_after < 12
    shutil.copytree(run, boundary)
    (boundary / "latest_checkpointed_iteration.txt").write_text("3")
    scores = json.loads((boundary / "reference.json").read_text())
    of_another = {"of": "another", "log_probs": [[0.0, 0.0] for _ in scores["log_probs"]]}
    (boundary / "reference.json").write_text(json.dumps(of_another))
    for again in [start(folder, "dpo", f"trainer.default_local_dir={where}") for where in (run, boundary)]:
        finished(again)
    whole, end = metrics(preferred), load_file(resolve_checkpoint(preferred) / "model.safetensors")
    for where in (run, boundary):
        resumed = metrics(where)
        assert list(resumed) == list(whole)
        for step, values in whole.items():
            assert resumed[step]["train/loss"] == pytest.approx(values["train/loss"], abs=1e-6), step
        weights = load_file(resolve_checkpoint(where) / "model.safetensors")
        assert all(torch.equal(end[name], weights[name]) for name in end)


def test_a_dpo_run_does_not_resume_with_another_reference(folder, preferred):
    weights = folder / "model/model.safetensors"
    content = weights.read_bytes()
    try:
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ConfigError, match=r"holds step 12 of another recipe: weights of model\.path was '"):
            start_here(folder, DPO, preferred)
    finally:
        weights.write_bytes(content)
    start_here(folder, DPO, preferred)


def test_sft_trains_on_oracle_and_records_and_its_shards_are_exported(folder, tmp_path, capfd):
    run = folder / "runs/sft"
    output = finished(start(folder, "sft", f"trainer.default_local_dir={run}"))
    assert "4 episodes of the oracle, 8 recorded of guess_number" in output
    steps = metrics(run)
    assert list(steps) == list(range(1, 19))
    assert steps[18]["train/loss"] < steps[1]["train/loss"] - 1
    exported = export_model(run, tmp_path / "model")
    assert not any((run / "global_step_18/huggingface").glob("*.safetensors"))
    assert margin(exported) > margin(folder / "model") + 1
    start_here(folder, SFT, run)
    assert "All 18 steps are done already" in capfd.readouterr().out
    with (folder / "episodes.jsonl").open("a") as more:
        more.write(json.dumps(talk("Look right", 1.0, "new", env="guess_number")) + "\n")
    with pytest.raises(ConfigError, match="recorded episodes was"):
        start_here(folder, SFT, run)
    with pytest.raises(ConfigError, match="another recipe: command"):
        start_here(folder, DPO, run)


def test_sft_trains_on_imported_conversations_and_refuses_those_without_a_reward(folder):
    lines = [
        {
            "task": reply,
            "messages": [{"role": "user", "content": f"Task {reply}."}, {"role": "assistant", "content": reply}],
        }
        for reply in GUESSES
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for into, reward in (("unrated", None), ("rated", 1.0)):
        settings = ImportSettings("guess_number", reward=reward)
        import_records(folder / "chats.jsonl", "messages", folder / into, settings)
    run, only = folder / "runs/imported", ["episodes.oracle=false", "data.val_files=null", "trainer.total_epochs=6"]
    for extra in ([], ["episodes.min_reward=0"]):
        with chdir(folder), pytest.raises(ConfigError, match="holds 8 episodes without a reward"):
            config = recipe(folder / "sft.yaml", "episodes.records=unrated", *extra, *only)
            OfflineTraining(OfflinePlan.read(config), SFT).run()
    arguments = ["episodes.records=rated", f"trainer.default_local_dir={run}", *only]
    assert "8 recorded of guess_number" in finished(start(folder, "sft", *arguments))
    steps = metrics(run)
    assert steps[max(steps)]["train/loss"] < steps[1]["train/loss"] - 0.5


def start_here(folder: Path, method: Method, run: Path) -> None:
    """Start a run that trains nothing, in this process."""
    with chdir(folder):
        config = recipe(folder / f"{method.command}.yaml", f"trainer.default_local_dir={run}")
        OfflineTraining(OfflinePlan.read(config), method).run()
