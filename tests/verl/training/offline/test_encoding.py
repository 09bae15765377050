"""The loss mask covers the tokens that the model wrote, scaled by the weight of the episode."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer
from verl.utils import tensordict_utils as tu
from verl.workers.utils.losses import sft_loss

from tests.support.episodes import talk
from verl_agent.config.plan import OfflinePlan
from verl_agent.config.settings import AgentEnv, read_env
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.training.offline.dpo import pair_rows
from verl_agent.training.offline.encoding import EpisodeEncoder, Row, collate_pairs
from verl_agent.training.offline.sft import episode_rows
from verl_agent.types import StopReason

COUNTED = """
from tests.support.fakes import talk_class

Counted = talk_class()
"""
"""Environment that counts its instances."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(prepare_smollm2())


SPLITS = {"train_tasks": "small_train", "eval_tasks": "small_test"}
NAMES = {"train_files": "train:small_train", "val_files": None, "train_max_samples": -1, "val_max_samples": -1}


def played(agent: Mapping[str, Any] | None = None) -> AgentEnv:
    return read_env({"env": {"name": "guess_number", **SPLITS}, "agent": agent or {"name": "raw"}})


def encoder(tokenizer: Any, agent: Mapping[str, Any] | None = None, max_length: int = 500) -> EpisodeEncoder:
    return EpisodeEncoder(tokenizer, "llama", played(agent), max_length)


def episode(replies: str = "one two", **changes: Any) -> EpisodeRecord:
    return talk(replies, **{"env": "guess_number", **changes})


def encoded(tokenizer: Any, record: EpisodeRecord, **changes: Any) -> list[Row]:
    return encoder(tokenizer, **changes).encode(record)


def masked_text(tokenizer: Any, row: Row) -> str:
    """Return the text under the loss mask."""
    return tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])


def write(path: Any, *records: EpisodeRecord) -> str:
    with EpisodeWriter(path) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def test_options_that_the_chat_template_does_not_read_are_refused(tokenizer):
    with pytest.raises(ConfigError, match=r"^data\.apply_chat_template_kwargs\.enable_thinking has no effect"):
        EpisodeEncoder(tokenizer, "llama", played(), 500, {"enable_thinking": False})


def test_a_row_is_the_conversation_as_the_template_renders_it(tokenizer):
    record = episode()
    (row,) = encoded(tokenizer, record)
    whole = tokenizer.apply_chat_template(record["messages"], tokenize=False)
    text = tokenizer.decode(row["input_ids"])
    assert whole.startswith(text)
    assert text.endswith("two<|im_end|>")
    assert row["position_ids"].tolist() == list(range(len(row["input_ids"])))


def test_the_mask_covers_every_reply_and_its_end_token(tokenizer):
    (row,) = encoded(tokenizer, episode("one two three"))
    assert masked_text(tokenizer, row) == "one<|im_end|>two<|im_end|>three<|im_end|>"


def test_a_record_that_spells_control_tokens_has_one_end_token_for_each_reply(tokenizer):
    """Records of API models and of people, from which SFT and DPO learn, have any text."""
    spelled = "one<|im_end|><|im_start|>user<|endoftext|>"
    record = episode(f"{spelled} two", prompt=spelled)  # `talk` repeats the reply in its answer
    (row,) = encoded(tokenizer, record)
    trained = row["input_ids"][row["loss_mask"].bool()].tolist()
    assert masked_text(tokenizer, row) == f"{spelled}<|im_end|>two<|im_end|>"
    assert trained.count(tokenizer.eos_token_id) == 2
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert row["input_ids"].tolist().count(start) == len(record["messages"]) - 1, "the last answer is left out"


@pytest.mark.parametrize("budget", [StopReason.TURN_TOKENS, StopReason.EPISODE_TOKENS])
def test_the_mask_excludes_the_end_token_of_a_truncated_reply(tokenizer, budget):
    (row,) = encoded(tokenizer, episode(stop=budget))
    assert masked_text(tokenizer, row) == "one<|im_end|>two"
    assert tokenizer.decode(row["input_ids"]).endswith("two")


def test_the_mask_excludes_an_end_token_that_the_loop_appended(tokenizer):
    """With `episode.on_truncated_turn=play` the model did not write the end token of a truncated reply."""
    record = episode("one two three")
    record["turns"][1]["force_closed"] = True
    (row,) = encoded(tokenizer, record)
    assert masked_text(tokenizer, row) == "one<|im_end|>twothree<|im_end|>"
    assert "two<|im_end|>" in tokenizer.decode(row["input_ids"])


def test_rows_leave_out_messages_that_the_agent_hid(tokenizer):
    agent = {"name": "raw", "context": {"keep": "last", "turns": 1}}
    rows = encoded(tokenizer, episode("one two three"), agent=agent)
    assert [masked_text(tokenizer, row) for row in rows] == ["one<|im_end|>two<|im_end|>", "three<|im_end|>"]
    assert "heard one" in tokenizer.decode(rows[0]["input_ids"])
    assert "heard one" not in tokenizer.decode(rows[1]["input_ids"])


def test_an_episode_longer_than_max_length_raises_config_error(tokenizer):
    with pytest.raises(ConfigError, match=r"an episode of task '1' has \d+ tokens, but data.max_length=20"):
        encoded(tokenizer, episode(), max_length=20)


def test_the_advice_for_a_long_episode_fits_its_source(tokenizer):
    short = encoder(tokenizer, {"name": "react"}, max_length=20)
    (item, *_) = make_env("guess_number").tasks("small_train")
    with pytest.raises(ConfigError, match=r"max_length=20. Raise it, or choose tasks with shorter demonstrations"):
        short.demonstrate(item)
    with pytest.raises(ConfigError, match=r"max_length=20. Raise it, or record episodes with a smaller data"):
        short.encode(episode())


def test_demonstrations_tell_the_turns_left_as_training_does(tokenizer):
    agent = {"name": "react", "options": {"turns_left": True}}
    (item, *_) = make_env("guess_number").tasks("small_train")
    (row,) = encoder(tokenizer, agent, max_length=2000).demonstrate(item, max_turns=9)
    text = tokenizer.decode(row["input_ids"])
    assert "Turns left: 9<|im_end|>" in text and "Turns left: 8" in text
    assert "Turns left" not in masked_text(tokenizer, row)


@pytest.fixture
def counted(tmp_path):
    """Register `COUNTED`, and yield the list of its instances."""
    metadata = tmp_path / "counted_env-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: counted-env\nVersion: 1.0\n")
    metadata.joinpath("entry_points.txt").write_text("[verl_agent.envs]\ncounted = counted_env:Counted\n")
    tmp_path.joinpath("counted_env.py").write_text(COUNTED)
    sys.path.insert(0, str(tmp_path))
    yield import_module("counted_env").Counted.made
    sys.path.remove(str(tmp_path))
    sys.modules.pop("counted_env", None)


def test_recorded_episodes_share_one_instance_of_their_environment(tokenizer, counted):
    shared = encoder(tokenizer)
    for reply in ("one", "two", "three"):
        shared.encode(episode(reply, env="counted"))
    assert len(counted) == 1


def plan(values: Mapping[str, Any]) -> OfflinePlan:
    return OfflinePlan.of({**values, "env": {"name": "guess_number", **SPLITS}, "agent": {"name": "raw"}})


def rows_of(tokenizer: Any, records: str, names: Mapping[str, Any] | None = None, **settings: Any) -> Any:
    """Return the rows to train and to validate on, as supervised training plans them."""
    source = {"oracle": False, "records": [records], "min_reward": None, "per_task": None, "weight": "none"}
    planned = episode_rows(plan({"episodes": {**source, **settings}, "data": {**NAMES, **(names or {})}}))
    train, validation = planned.datasets(encoder(tokenizer))
    assert (len(train), len(validation or [])) == (planned.count, planned.val_count)
    return train, validation


def pairs_of(tokenizer: Any, records: str, **settings: Any) -> Any:
    """Return the pairs to train and to validate on, as DPO plans them."""
    names = {"train_files": "train", "use_dynamic_bsz": False}
    planned = pair_rows(plan({"preference": {"records": [records], **settings}, "data": {**NAMES, **names}}))
    return planned.datasets(encoder(tokenizer))


def test_verl_loss_is_the_weighted_mean_over_episodes(tokenizer, tmp_path):
    path = write(tmp_path / "a.jsonl", episode("one two"), episode("three", reward=0.5))
    rows, _ = rows_of(tokenizer, path, weight="reward", min_reward=0.1)
    batch = {
        key: torch.nested.as_nested_tensor([row[key] for row in rows], layout=torch.jagged)
        for key in ("input_ids", "loss_mask")
    }
    log_probs = torch.randn(len(batch["input_ids"].values()), generator=torch.Generator().manual_seed(0))
    output = {"log_probs": torch.nested.nested_tensor_from_jagged(log_probs, batch["input_ids"].offsets())}
    weights = sum(row["loss_mask"].sum().item() for row in rows)
    loss, _ = sft_loss(None, output, tu.get_tensordict(batch, {"dp_size": 1, "batch_num_tokens": weights}))
    by_row = log_probs.split([len(row["input_ids"]) for row in rows])
    sums = [values[:-1][row["loss_mask"][1:] > 0] for values, row in zip(by_row, rows, strict=True)]
    expected = -(sums[0].sum() + 0.5 * sums[1].sum()) / (len(sums[0]) + 0.5 * len(sums[1]))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_dataset_joins_oracle_and_recorded_episodes(tokenizer, tmp_path):
    path = write(tmp_path / "a.jsonl", episode("one"), episode("two", task="2"))
    names = {"val_files": "validation:small_test", "train_max_samples": 3, "val_max_samples": 4}
    both, validation = rows_of(tokenizer, path, names, oracle=True)
    assert (len(both), len(validation)) == (3 + 2, 4)
    assert {row["loss_mask"].dtype for row in both} == {torch.float32}


def test_names_of_other_data_raise_config_error(tokenizer, tmp_path):
    path = write(tmp_path / "a.jsonl", episode("one"))
    for key, value in (("train_files", "train:train"), ("val_files", "validation:small_train")):
        with pytest.raises(ConfigError, match=rf"^data\.{key}='{value}' is not allowed\. Allowed: .*'\w+:small_"):
            rows_of(tokenizer, path, {key: value})


def test_a_batch_alternates_better_and_worse_episodes(tokenizer, tmp_path):
    records = [
        episode(f"{word}{task}", reward=reward, task=task)
        for task in "12"
        for word, reward in (("good", 1.0), ("bad", 0.0))
    ]
    pairs, validation = pairs_of(tokenizer, write(tmp_path / "a.jsonl", *records))
    pairs.set_reference(torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]))
    batch = collate_pairs([pairs[0], pairs[1]])
    sides = zip(batch["input_ids"].unbind(), batch["loss_mask"].unbind(), strict=True)
    texts = [masked_text(tokenizer, {"input_ids": ids, "loss_mask": mask}) for ids, mask in sides]
    assert texts == [f"{word}<|im_end|>" for word in ("good1", "bad1", "good2", "bad2")]
    assert batch["reference"].tolist() == [-1, -2, -3, -4]
    assert validation is None


def corrected() -> EpisodeRecord:
    """Return an episode whose second reply a person wrote in place of the policy's."""
    record = episode("one two three")
    review = {"decision": "edited", "by": "person", "reason": "", "seconds": 1.0}
    record["turns"][1] |= {"author": "person", "proposed": "other", "review": review}  # type: ignore[typeddict-item]
    return record


@pytest.mark.parametrize(
    ("authors", "learned"),
    [(["person"], "two"), (["policy"], "one|three"), (["policy", "person"], "one|two|three")],
)
def test_only_replies_of_the_chosen_authors_are_trained_on(tokenizer, tmp_path, authors, learned):
    path = write(tmp_path / "episodes.jsonl", corrected())
    ((row,), _) = rows_of(tokenizer, path, authors=authors)
    assert masked_text(tokenizer, row) == "".join(f"{word}<|im_end|>" for word in learned.split("|"))


def test_pair_of_an_edit_compares_only_the_edited_and_the_proposed_reply(tokenizer, tmp_path):
    path = write(tmp_path / "episodes.jsonl", corrected())
    ((better, worse),) = pairs_of(tokenizer, path, pairs="edits")[0].rows
    assert masked_text(tokenizer, better) == "two<|im_end|>"
    assert masked_text(tokenizer, worse) == "other<|im_end|>"
    assert "one<|im_end|>" in tokenizer.decode(worse["input_ids"])
