"""SGLang's engine on the CPU behind verl's server: log-probs, weights, tokens of episodes, and training steps.

All computation is in float32. The tolerance of log-probs is `TOLERANCE`.
"""

import asyncio
import random
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("sglang", reason="SGLang is not installed: run `make setup-sglang`, then `make test-engines`")

from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.fakes import ITEM, plain
from tests.support.models import write_byte_model
from tests.support.sglang_server import Server, sglang_server
from tests.support.tokens import Chatter, Model, PlayedTokens, check_tokens
from tests.support.training_runs import check_killed_run, train_killed, train_to_end
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.settings import TokenBudget
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record_files import read_records

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

TOLERANCE = 2e-5
PROBABILITY_TOLERANCE = 1e-6
CONTEXT = 512
"""Positions of the model."""
EPISODES, TURNS = 16, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    texts = ["Got 4 oak log. Begin. Action: look"]
    return write_byte_model(tmp_path_factory.mktemp("sglang") / "model", texts, 300, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def server(folder):
    with sglang_server(folder, CONTEXT) as running:
        yield running


@pytest.fixture
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def generate(server: Server, prompts: list[list[int]], tokens: int) -> list[tuple[list[int], list[float]]]:
    """Return ids and log-probs of a reply to each prompt; all requests run at once, and no reply ends by itself."""

    async def ask() -> list[tuple[list[int], list[float]]]:
        sampling = {"temperature": 1.0, "ignore_eos": True, "max_tokens": tokens}
        requests = [server.generate("batch", prompt_ids=ids, sampling_params=dict(sampling)) for ids in prompts]
        return [(list(output.token_ids), output.log_probs) for output in await asyncio.gather(*requests)]

    return asyncio.run(ask())


def log_probs(model, prompt: list[int], reply: list[int]) -> torch.Tensor:
    """Return transformers' log-prob of each token of a reply, shape (tokens,)."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + reply])).logits[0].log_softmax(-1)
    return logits[len(prompt) - 1 : -1].gather(-1, torch.tensor(reply)[:, None])[:, 0]


def largest_difference(model, prompts, replies) -> float:
    return max(
        (log_probs(model, prompt, ids) - torch.tensor(values)).abs().max().item()
        for prompt, (ids, values) in zip(prompts, replies, strict=True)
    )


def random_prompts(lengths) -> list[list[int]]:
    return [[random.Random(length).randrange(2, 256) for _ in range(length)] for length in lengths]


def test_log_probs_are_those_of_transformers_before_and_after_new_weights(server, model):
    prompts = random_prompts(range(3, 60, 8))
    replies = generate(server, prompts, 24)
    assert all(len(ids) == 24 for ids, _ in replies)
    before = largest_difference(model, prompts, replies)
    old = model.state_dict()
    new = {name: value * 1.3 for name, value in old.items()}
    try:
        asyncio.run(server.update_weights(new))
        model.load_state_dict(new)
        replies = generate(server, prompts, 24)
        after = largest_difference(model, prompts, replies)
        model.load_state_dict({name: value / 1.3 for name, value in new.items()})
        stale = largest_difference(model, prompts, replies)
    finally:
        asyncio.run(server.update_weights(old))
    sys.stdout.write(f"\nlog-probs differ by {before:.1e}, after new weights {after:.1e}, from the old {stale:.1e}\n")
    assert before < TOLERANCE and after < TOLERANCE and stale > 100 * TOLERANCE


@pytest.mark.parametrize("prompt", [1, CONTEXT // 2, CONTEXT - 7, CONTEXT - 2, CONTEXT - 1])
def test_prompt_and_reply_fill_the_whole_context(server, model, prompt):
    """The server of verl leaves one position empty, and SGLang another one, or six beside a long prompt."""
    prompts = random_prompts([prompt])
    ((ids, values),) = generate(server, prompts, CONTEXT)
    assert len(ids) == CONTEXT - prompt
    assert largest_difference(model, prompts, [(ids, values)]) < TOLERANCE


def test_episodes_train_on_the_tokens_that_the_engine_wrote(server, folder, model):
    """The contract of test_tokens.py with a real engine: some replies end themselves, others are cut."""
    named = Model(AutoTokenizer.from_pretrained(folder), {}, "llama")
    budget = TokenBudget(prompt=200, episode=CONTEXT - 200, turn=32, play_truncated_turns=True)

    async def one() -> PlayedTokens:
        engine = Server(server.actor, server.config, server.model)
        policy = named.policy(engine, budget)
        episode = await play_episode(ITEM, Chatter(turns=TURNS), plain(), policy, EpisodeLimits(TURNS))
        return PlayedTokens(episode, engine, policy, policy.tokens.segments())

    async def several() -> list[PlayedTokens]:
        return await asyncio.gather(*(one() for _ in range(EPISODES)))

    plays = asyncio.run(several())
    for played in plays:
        check_tokens(played)
        segment = played.segment
        found = log_probs(model, segment.prompt_ids, segment.response_ids)
        difference = (found - torch.tensor(segment.response_log_probs)) * torch.tensor(segment.response_mask)
        assert difference.abs().max() < TOLERANCE
    written = [ids for played in plays for ids in played.engine.written]
    ended = sum(ids[-1] == named.tokenizer.eos_token_id for ids in written)
    assert 0 < ended < len(written)


@pytest.mark.slow
def test_training_samples_each_step_with_the_weights_of_the_last_update(tmp_path):
    run = train_to_end(tmp_path / "run", "+overlay/rollout=sglang", "algorithm.rollout_correction.bypass_mode=false")
    steps = read_metrics(sorted(run.glob("metrics/*.jsonl")))
    differences = [steps[step]["training/rollout_probs_diff_max"] for step in (1, 2)]
    sys.stdout.write(f"\nprobabilities differ by {differences}\n")
    assert max(differences) < PROBABILITY_TOLERANCE
    assert all(steps[step]["actor/grad_norm"] > 0 for step in (1, 2))
    assert {record["step"] for record in read_records(run)} == {1, 2}


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_tasks(tmp_path):
    check_killed_run(train_killed(tmp_path / "killed", "+overlay/rollout=sglang"))
