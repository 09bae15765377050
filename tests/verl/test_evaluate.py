"""An evaluation speaks to its engine as training does, with its own sampling, and plays through it to the end."""

import asyncio
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from transformers import AutoTokenizer

from tests.support.fakes import ITEM, ScriptedEngine
from verl_agent.commands.evaluate import play, policies
from verl_agent.evaluation.job import Evaluation, prepare_evaluation
from verl_agent.models.resolve import prepare_smollm2
from verl_agent.platform.detect import use_cpu_device
from verl_agent.types import Message, StopReason

MESSAGES: list[Message] = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Begin."}]


def job(folder: Path, model: str = "smollm2-135m", turns: int = 3, **episode) -> Evaluation:
    return prepare_evaluation(
        OmegaConf.create(
            {
                "env": {"name": "guess_number"},
                "horizon": {"max_turns": [turns]},
                "episode": {"max_tokens_per_turn": 8, **episode},
                "agent": {"name": "act"},
                "data": {"max_prompt_length": 64, "max_response_length": 64},
                "model": {"path": model},
                "engine": {"device": "cpu" if use_cpu_device() else "cuda"},
                "evaluation": {"output_dir": str(folder), "temperature": 0.7, "top_p": 0.9},
            }
        )
    )


def test_a_policy_samples_as_the_evaluation_says(tmp_path):
    engine = ScriptedEngine(AutoTokenizer.from_pretrained(prepare_smollm2()), ["ok"], log_probs=False, steps=(None,))
    reply = asyncio.run(policies(job(tmp_path), engine)(ITEM, 5).reply(MESSAGES))
    assert (reply.text, reply.truncated_by) == ("ok", None)
    assert engine.sampling == [{"temperature": 0.7, "top_p": 0.9, "seed": 5, "max_tokens": 8}]


def test_a_reply_that_reaches_the_budget_ends_or_is_played_as_the_recipe_says(tmp_path):
    long = "a reply that is longer than eight tokens"
    cuts = []
    for place, on_truncated_turn in enumerate(("stop", "play")):
        engine = ScriptedEngine(AutoTokenizer.from_pretrained(prepare_smollm2()), [long], steps=(None,))
        asked = job(tmp_path / str(place), on_truncated_turn=on_truncated_turn)
        cuts.append(asyncio.run(policies(asked, engine)(ITEM, 1).reply(MESSAGES)).cut)
    assert cuts == [StopReason.TURN_TOKENS, None]


def test_each_turn_of_an_episode_samples_from_a_stream_of_its_own(tmp_path):
    """Also where the context was edited, so that the prompt of one turn may be that of another."""
    engine = ScriptedEngine(AutoTokenizer.from_pretrained(prepare_smollm2()), ["ok"] * 3, steps=(None,))
    policy = policies(job(tmp_path), engine)(ITEM, 5)
    for _ in range(3):
        asyncio.run(policy.reply(MESSAGES))
    assert [one["seed"] for one in engine.sampling] == [5, 6, 7]


def test_the_oracle_of_an_environment_is_evaluated_without_an_engine_or_a_model(tmp_path):
    asked = job(tmp_path, model="oracle", turns=7)
    asyncio.run(play(asked, Console(redirect_output=True)))
    records = asked.records()
    assert {record["task"] for record in records} == {item.id for item in asked.items}
    assert {(record["model"], record["success"]) for record in records} == {("oracle", True)}
