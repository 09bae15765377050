"""Benchmark of the rollout against its limit: the requests of a recorded step, replayed on the bare engine.

python -m tests.bench.replay RECORDS --model FOLDER [--step 2] [--steps 1]

RECORDS is a file of episodes that a training run on a CPU wrote, FOLDER the model that it began with. The replay has
vLLM in one process beside this one, as the run has, and nothing else of the run: no verl, Ray, TransferQueue, agent or
environment. Each reply has as many tokens as in the run, and the next request comes as late after it. Tokens differ.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import mean

from rich.console import Console
from transformers import AutoConfig, AutoTokenizer

from verl_agent.evaluation.settings import EngineSettings
from verl_agent.evaluation.vllm_engine import VllmEngine
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.tokens import EpisodeTokens
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records


def span(records: Sequence[EpisodeRecord]) -> float:
    """Return the seconds from the first start to the last end of the episodes in the run."""
    starts = [datetime.fromisoformat(record["started_at"]).timestamp() for record in records]
    ends = [start + record["seconds"] for start, record in zip(starts, records, strict=True)]
    return max(ends) - min(starts)


async def replay(engine: VllmEngine, tokens: EpisodeTokens, record: EpisodeRecord, name: str, seed: int) -> list[float]:
    """Request the replies of an episode; return the seconds of each."""
    seconds = []
    for turn, played in enumerate(record["turns"]):
        tokens.add_messages(record["messages"][: record["prompt_length"] + 2 * turn])
        sampling = {"temperature": 1.0, "seed": seed + turn, "ignore_eos": True, "logprobs": True}
        began = time.monotonic()
        reply = await engine.generate(
            name, prompt_ids=tokens.ids, sampling_params=sampling | {"max_tokens": played["tokens"]}
        )
        seconds.append(time.monotonic() - began)
        tokens.add_reply(played["reply"], [*reply.token_ids[:-1], tokens.end_of_turn])
        await asyncio.sleep(played["env_s"])
    return seconds


async def measure(model: Path, records: Sequence[Sequence[EpisodeRecord]]) -> None:
    """Replay steps after a first one that warms up, and print each beside the run."""
    tokenizer, console = AutoTokenizer.from_pretrained(model), Console()
    builder = choose_builder(tokenizer, AutoConfig.from_pretrained(model).model_type, {})
    settings = EngineSettings(device="cpu", enforce_eager=True, max_num_seqs=64, block_size=32)
    with VllmEngine(str(model), settings, context=2048) as engine:
        for number, step in enumerate([records[0], *records]):
            began = time.monotonic()
            found = await asyncio.gather(
                *(
                    replay(engine, EpisodeTokens(builder, tokenizer.eos_token_id), one, f"{number}-{place}", place)
                    for place, one in enumerate(step)
                )
            )
            if number:
                console.print(report(step, time.monotonic() - began, found), highlight=False)


def report(step: Sequence[EpisodeRecord], replayed: float, found: Sequence[Sequence[float]]) -> str:
    """Return a line about a step.

    Args:
        replayed: seconds of its replay.
        found: seconds of each reply of each episode in it.
    """
    recorded, turns = span(step), [turn for one in step for turn in one["turns"]]
    generate_s, env_s = (mean(turn[name] for turn in turns) for name in ("generate_s", "env_s"))
    return (
        f"step {step[0]['step']}: {len(step)} episodes, {len(turns)} replies; run {recorded:.1f} s, "
        f"replay {replayed:.1f} s, ratio {recorded / replayed:.2f}; a reply {generate_s:.2f} "
        f"and {mean(second for one in found for second in one):.2f} s, environment {env_s:.4f} s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the records, and measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description="Replay a rollout's requests.")
    parser.add_argument("records", type=Path, help="file of episodes")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--step", type=int, default=2, help="first step (default 2; the first one warms up)")
    parser.add_argument("--steps", type=int, default=1, help="number of steps (default 1)")
    options = parser.parse_args(arguments)
    steps = range(options.step, options.step + options.steps)
    records = [record for record in read_records(options.records) if record["purpose"] == "train"]
    asyncio.run(measure(options.model, [[one for one in records if one["step"] == step] for step in steps]))


if __name__ == "__main__":
    main()
