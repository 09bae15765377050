"""Test the text that a model read before each reply of a recorded episode: with its tokenizer, and without."""

import asyncio
from pathlib import Path

import pytest

from tests.support.models import write_byte_tokenizer
from tests.support.what_if import RUN, of_evaluation, of_run
from verl_agent.evaluation.what_if.raw_prompts import raw_prompts
from verl_agent.viewer.raw_prompt import RawPromptError, render_prompts


def test_each_turn_has_the_text_that_the_chat_template_makes_of_the_visible_messages(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path / "model", ["Guess a number"], 300)
    context = {"keep": "last", "turns": 1, "stride": 1}
    agent = {**RUN["agent"], "context": context}
    recorded = of_evaluation(tmp_path, model=str(tmp_path / "model"), agent=agent)
    first, second, third, _ = raw_prompts(recorded, range(1, 5))
    assert first.startswith("<|im_start|>") and first.endswith("<|im_end|>\n<|im_start|>assistant\n")
    replies = [turn["reply"] for turn in recorded.record["turns"]]
    assert replies[0] not in first and replies[0] in second
    left_out = "(This observation is left out.)"
    assert left_out not in second and left_out in third, "the agent keeps the last observation alone"


def test_a_tokenizer_that_is_not_on_this_machine_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # nor on another, for which the hub is asked several times
    model = {"path": "nobody/no-such-model"}
    settings = {**RUN, "actor_rollout_ref": {**RUN["actor_rollout_ref"], "model": model}}
    recorded = of_run(tmp_path, settings=settings)
    with pytest.raises(RawPromptError, match="nobody/no-such-model"):
        asyncio.run(render_prompts((recorded.file, recorded.line), range(1, 2)))


def test_a_slow_tokenizer_ends_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(RawPromptError, match=r"within 0\.01 s"):
        asyncio.run(render_prompts((tmp_path / "episodes.jsonl", 1), range(1, 2), timeout_s=0.01))
