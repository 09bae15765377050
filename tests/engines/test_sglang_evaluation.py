"""Evaluation with SGLang on the CPU: log-probs before the temperature, and a whole evaluation."""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("sglang", reason="SGLang is not installed: run `make setup-sglang`, then `make test-engines`")

from transformers import AutoModelForCausalLM

from tests.support.models import write_byte_model
from tests.support.training_runs import command_line, run_environment, wait_for_end
from verl_agent.evaluation.settings import EngineSettings
from verl_agent.evaluation.sglang_engine import SglangEngine
from verl_agent.evaluation.vllm_engine import Generation
from verl_agent.trace.record_files import read_records

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

TOLERANCE = 2e-5
CONTEXT = 128
RECIPE = """
defaults: [agent_eval, cpu_eval, _self_]
env: {name: guess_number, eval_tasks: small_test, options: {tolerant: true}}
agent: {name: raw}
horizon: {eval_max_turns: 2}
episode: {max_tokens_per_turn: 8, on_truncated_turn: play}
data: {max_prompt_length: 256, max_response_length: 256}
engine: {name: sglang, dtype: float32}
evaluation: {max_tasks: 4, samples: 2, logprobs: 2}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("sglang") / "model", ["Guess a whole number. Higher."], 300)


@pytest.fixture(scope="module")
def running(folder) -> Iterator[tuple[asyncio.Runner, SglangEngine]]:
    """Return an engine, and the event loop in which it was created."""
    settings = EngineSettings(name="sglang", device="cpu", dtype="float32", max_num_seqs=16)

    async def start() -> SglangEngine:
        return SglangEngine(str(folder), settings, CONTEXT)

    with asyncio.Runner() as runner, runner.run(start()) as engine:
        yield runner, engine


def test_log_probs_are_those_before_temperature_and_top_p(running, folder):
    runner, engine = running
    prompts = [[5 + place for place in range(length)] for length in (1, 9, CONTEXT - 1)]

    async def ask() -> list[Generation]:
        sampling = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 1, "logprobs": 3, "seed": 7}
        requests = [engine.generate("e", prompt_ids=ids, sampling_params=sampling) for ids in prompts]
        return list(await asyncio.gather(*requests))

    replies = runner.run(ask())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, reply in zip(prompts, replies, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        assert reply.log_probs == pytest.approx([expected[reply.token_ids[0]].item()], abs=TOLERANCE)
        (most_likely,) = reply.extra_fields["top_log_probs"]
        assert [token for token, _ in most_likely] == expected.topk(3).indices.tolist()
        assert [value for _, value in most_likely] == pytest.approx(expected.topk(3).values.tolist(), abs=TOLERANCE)


def test_a_token_depends_on_seed_and_position_alone(running):
    """Not on the batch, on other requests' limits, or on the request that wrote the tokens before it."""
    runner, engine = running
    prompts = [[5 + seed] * (3 + seed) for seed in range(12)]

    async def reply(seed: int | None, given: Sequence[int] = (), tokens: int = 16, **limits: float) -> list[int]:
        sampling = {"temperature": 1.0, "ignore_eos": True, "max_tokens": tokens, **limits}
        sampling |= {} if seed is None else {"seed": seed}
        prompt = [*prompts[seed or 0], *given]
        return (await engine.generate("e", prompt_ids=prompt, sampling_params=sampling)).token_ids

    async def ask() -> None:
        alone = [await reply(seed) for seed in range(12)]
        assert len(set(map(tuple, alone))) == 12 and await reply(None) != await reply(None)
        assert await asyncio.gather(*map(reply, range(12))) == alone
        others = [reply(None), reply(3, top_k=2), reply(4, top_p=0.2), reply(5, min_p=0.5), reply(6, temperature=0)]
        mixed = await asyncio.gather(*map(reply, range(12)), *others)
        assert mixed[:12] == alone
        rest = await asyncio.gather(*(reply(seed, ids[:6], 10) for seed, ids in enumerate(alone)))
        assert [ids[:6] + more for ids, more in zip(alone, rest, strict=True)] == alone

    runner.run(ask())


def test_an_evaluation_writes_records_and_results(tmp_path, folder):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    paths = [f"model.path={folder}", f"evaluation.output_dir={tmp_path / 'results'}"]
    command = command_line("evaluate", tmp_path, "recipe", *paths)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ended = subprocess.run(command, env=run_environment(tmp_path), text=True, **pipes)
    assert wait_for_end(tmp_path) == []
    assert ended.returncode == 0, ended.stdout
    records = list(read_records(tmp_path / "results"))
    assert len(records) == 8 and all(record["turns"] for record in records)
    versions = json.loads((tmp_path / "results/evaluation.json").read_text())["provenance"]["versions"]
    assert versions["sglang"] == "0.5.12"
