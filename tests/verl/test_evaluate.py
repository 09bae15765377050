"""Test how an evaluation plays a model behind an engine."""

import asyncio
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from tests.support.fakes import ITEM, ScriptedEngine
from verl_agent.evaluation.job import Evaluation, prepare_evaluation
from verl_agent.evaluation.policies import engine_policies
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.platform.detect import use_cpu_device
from verl_agent.rollout.episode import Policy
from verl_agent.types import Message, StopReason

MESSAGES: list[Message] = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Begin."}]


def prepared(folder: Path, **episode) -> Evaluation:
    return prepare_evaluation(
        OmegaConf.create(
            {
                "env": {"name": "guess_number"},
                "horizon": {"max_turns": [3]},
                "episode": {"max_tokens_per_turn": 8, **episode},
                "agent": {"name": "act"},
                "data": {"max_prompt_length": 64, "max_response_length": 64},
                "model": {"path": "smollm2-135m"},
                "engine": {"device": "cpu" if use_cpu_device() else "cuda"},
                "evaluation": {"output_dir": str(folder), "temperature": 0.7, "top_p": 0.9},
            }
        )
    )


def policy(evaluation: Evaluation, engine: ScriptedEngine, seed: int) -> Policy:
    return engine_policies(evaluation.model, evaluation.config, engine)(ITEM, seed)


def test_a_policy_samples_with_the_settings_of_the_evaluation(tmp_path):
    engine = ScriptedEngine(AutoTokenizer.from_pretrained(prepare_smollm2()), ["ok"], log_probs=False, steps=(None,))
    reply = asyncio.run(policy(prepared(tmp_path), engine, 5).reply(MESSAGES))
    assert (reply.text, reply.truncated_by) == ("ok", None)
    assert engine.sampling == [{"temperature": 0.7, "top_p": 0.9, "seed": 5, "max_tokens": 8}]


@pytest.mark.parametrize(("on_truncated_turn", "truncated_by"), [("stop", StopReason.TURN_TOKENS), ("play", None)])
def test_a_reply_that_reaches_the_budget_is_truncated_or_played(tmp_path, on_truncated_turn, truncated_by):
    long = "a reply that is longer than eight tokens"
    engine = ScriptedEngine(AutoTokenizer.from_pretrained(prepare_smollm2()), [long], steps=(None,))
    evaluation = prepared(tmp_path, on_truncated_turn=on_truncated_turn)
    assert asyncio.run(policy(evaluation, engine, 1).reply(MESSAGES)).truncated_by == truncated_by


def test_each_turn_of_an_episode_has_its_own_seed(tmp_path):
    """Prompts of two turns may be equal where the context is edited."""
    engine = ScriptedEngine(AutoTokenizer.from_pretrained(prepare_smollm2()), ["ok"] * 3, steps=(None,))
    one = policy(prepared(tmp_path), engine, 5)
    for _ in range(3):
        asyncio.run(one.reply(MESSAGES))
    assert [sampling["seed"] for sampling in engine.sampling] == [5, 6, 7]
