"""Benchmark of the rollout against its limit: the requests of recorded steps, replayed on the bare engine.

python -m tests.bench.replay RUN --model FOLDER [--steps 2 3 4]

RUN is the folder of a training run on a CPU, FOLDER the model that it began with. The replay has vLLM in one process
beside this one, as the run has, and nothing else of the run: no verl, Ray, TransferQueue, agent or environment. Each
reply has as many tokens as in the run, after prompts of the same length. Tokens differ. A second replay waits as long
as the environments took. The difference to the run's own seconds is the work of everything else.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from transformers import AutoConfig, AutoTokenizer

from verl_agent.config.search_path import cpu_dtype
from verl_agent.errors import ConfigError
from verl_agent.evaluation.settings import EngineSettings
from verl_agent.evaluation.vllm_engine import VllmEngine
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.tokens import EpisodeTokens, encode_reply
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

PARTS = ("environments", "loop and server", "queue and driver")


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the engine.

    Attributes:
        new_ids: tokens of the prompt or of an observation, new since the last reply.
        reply_tokens: length of the reply.
        env_s: seconds from the reply to the next request, which the environment took.
    """

    new_ids: list[int]
    reply_tokens: int
    env_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded step; durations in seconds.

    Attributes:
        number: step of the run.
        episodes: requests of each of its episodes.
        played_s: time from the first start to the last end of its episodes.
        rollout_s: the trainer's time for its rollout.
    """

    number: int
    episodes: list[list[Request]]
    played_s: float
    rollout_s: float


def requests_of(record: EpisodeRecord, tokenizer: Any, builder: Any) -> list[Request]:
    """Return the requests of an episode."""
    tokens, found = EpisodeTokens(builder, tokenizer.eos_token_id), []
    for turn, played in enumerate(record["turns"]):
        known = len(tokens.ids)
        tokens.add_messages(record["messages"][: record["prompt_length"] + 2 * turn])
        found.append(Request(tokens.ids[known:], played["tokens"], played["env_s"]))
        tokens.add_reply(played["reply"], encode_reply(tokenizer, played["reply"], tokens.end_of_turn))
    return found


def steps_of(run: Path, model: Path, numbers: Sequence[int]) -> list[Step]:
    """Return steps of a run.

    Raises:
        ConfigError: the run has no such step.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    builder = choose_builder(tokenizer, AutoConfig.from_pretrained(model).model_type, {})
    logged = read_metrics(sorted((run / "metrics").glob("*.jsonl")))
    records = [record for record in read_records(run / "episodes") if record["purpose"] == "train"]
    steps = []
    for number in numbers:
        played = [record for record in records if record["step"] == number]
        if not played or "timing_s/gen" not in logged.get(number, {}):
            raise ConfigError(f"{run} has no training step {number}; it has {sorted(logged)}. Change --steps.")
        starts = [datetime.fromisoformat(record["started_at"]).timestamp() for record in played]
        ends = [start + record["seconds"] for start, record in zip(starts, played, strict=True)]
        episodes = [requests_of(record, tokenizer, builder) for record in played]
        steps.append(Step(number, episodes, max(ends) - min(starts), logged[number]["timing_s/gen"]))
    return steps


async def replay(engine: VllmEngine, requests: Sequence[Request], name: str, seed: int, waits: bool) -> None:
    """Request the replies of an episode, and wait for the environment if `waits`."""
    ids: list[int] = []
    for turn, request in enumerate(requests):
        sampling = {"temperature": 1.0, "seed": seed + turn, "ignore_eos": True, "logprobs": True}
        sampling["max_tokens"] = request.reply_tokens
        reply = await engine.generate(name, prompt_ids=[*ids, *request.new_ids], sampling_params=sampling)
        ids = [*ids, *request.new_ids, *reply.token_ids]
        if waits:
            await asyncio.sleep(request.env_s)


async def measure(model: Path, steps: Sequence[Step], rounds: int) -> None:
    """Replay steps after a first one that warms up, and print the split of each."""
    settings = EngineSettings(device="cpu", dtype=cpu_dtype(), enforce_eager=True, max_num_seqs=64, block_size=32)
    names = map(str, range(1_000_000_000))

    async def seconds(step: Step, waits: bool) -> float:
        began = time.monotonic()
        played = enumerate(step.episodes)
        await asyncio.gather(*(replay(engine, one, next(names), 100 * seed, waits) for seed, one in played))
        return time.monotonic() - began

    with VllmEngine(str(model), settings, context=2048) as engine:
        await seconds(steps[0], False)
        for step in steps:
            pairs = [(await seconds(step, False), await seconds(step, True)) for _ in range(rounds)]
            bare_s, waiting_s = map(median, zip(*pairs, strict=True))
            Console().print(report(step, bare_s, waiting_s), highlight=False, soft_wrap=True)


def report(step: Step, bare_s: float, waiting_s: float) -> str:
    """Return a line about a step: what each part adds to the seconds of the engine."""
    requests = [request for one in step.episodes for request in one]
    tokens = sum(request.reply_tokens for request in requests)
    added = [waiting_s - bare_s, step.played_s - waiting_s, step.rollout_s - step.played_s]
    parts = [f"{part} {seconds:+.2f} ({seconds / bare_s:+.0%})" for part, seconds in zip(PARTS, added, strict=True)]
    return (
        f"step {step.number}: {len(requests)} replies, {tokens} tokens; engine {bare_s:.2f} s, {', '.join(parts)}; "
        f"rollout {step.rollout_s:.2f} s, ratio {step.rollout_s / bare_s:.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the run, measure, and print the split of each step's rollout."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description="Replay a rollout's requests.")
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--steps", type=int, nargs="*", default=[2, 3, 4], help="steps of the run (default 2 3 4)")
    parser.add_argument("--rounds", type=int, default=1, help="replays of each step (default 1)")
    options = parser.parse_args(arguments)
    asyncio.run(measure(options.model, steps_of(options.run, options.model, options.steps), options.rounds))


if __name__ == "__main__":
    main()
