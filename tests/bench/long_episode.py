"""Benchmark of the rollout's own work as turns grow: an episode without a model, its record and its rows.

python -m tests.bench.long_episode [--turns 10 30 100] [--observation 290] [--reply 30]

An engine answers at once with tokens that are known before, so that the loop, the chat template, the tokens and the
record remain. Work that is linear in the turns takes the same milliseconds for each turn.
"""

import argparse
import asyncio
import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from tests.support.fakes import ITEM, ScriptedEngine, Talk, plain
from tests.support.tokens import Model, load_model
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.settings import TokenBudget
from verl_agent.trace.behaviors import behavior_turns
from verl_agent.trace.record import EpisodeMeta, to_record
from verl_agent.types import StepResult

META = EpisodeMeta("train", "train", 1, "group", 0, datetime(2026, 1, 1, tzinfo=UTC), 1.0)
BUDGET = TokenBudget(prompt=1_000, episode=1_000_000, turn=1_000)


class Reader(Talk):
    """Environment with long observations that differ."""

    made: ClassVar[list[Talk]] = []

    def __init__(self, turns: int, words: int) -> None:
        super().__init__(turns)
        self._words = words

    async def step(self, action: str) -> StepResult:
        step = await super().step(action)
        text = " ".join(f"{(self.heard * 31 + word) % 97}" for word in range(self._words // 3))
        return StepResult(text, step.reward, step.terminated)


def timed(compute: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a function and its milliseconds of processor time, which other programs hardly change."""
    began = time.process_time()
    result = compute()
    return result, 1000 * (time.process_time() - began)


def measure(model: Model, turns: int, observation: int, reply: int) -> dict[str, float]:
    """Return tokens, milliseconds for each turn by kind of work, and bytes for each token."""
    word = model.tokenizer.encode(" go", add_special_tokens=False)
    engine = ScriptedEngine(model.tokenizer, [[*word * (reply - 1), model.tokenizer.eos_token_id]] * turns)
    policy, limits = model.policy(engine, BUDGET), EpisodeLimits(turns)
    episode, play_ms = timed(
        lambda: asyncio.run(play_episode(ITEM, Reader(turns, observation), plain(), policy, limits)),
    )
    _, rows_ms = timed(policy.tokens.segments)
    record, record_ms = timed(lambda: to_record(episode, META))
    line, json_ms = timed(lambda: json.dumps(record))
    _, behaviors_ms = timed(lambda: behavior_turns(record))
    tokens = len(policy.tokens.ids)
    found = {"play": play_ms, "rows": rows_ms, "record": record_ms, "json": json_ms, "behaviors": behaviors_ms}
    return {"tokens": tokens, **{name: ms / turns for name, ms in found.items()}, "bytes/token": len(line) / tokens}


def peak_kb(model: Model, turns: int, observation: int, reply: int) -> float:
    """Return the largest memory of Python objects during an episode, in kB for each turn."""
    tracemalloc.start()
    measure(model, turns, observation, reply)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1024 / turns


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.long_episode", description="Measure long episodes.")
    parser.add_argument("--turns", type=int, nargs="*", default=[10, 30, 100], help="numbers of turns")
    parser.add_argument("--observation", type=int, default=290, help="tokens of an observation, about (default 290)")
    parser.add_argument("--reply", type=int, default=30, help="tokens of a reply (default 30)")
    options, model = parser.parse_args(arguments), load_model()
    sizes = (options.observation, options.reply)
    measure(model, 3, *sizes)
    rows = [measure(model, turns, *sizes) | {"peak kB": peak_kb(model, turns, *sizes)} for turns in options.turns]
    table = Table("turns", *rows[0], title="milliseconds a turn, of five kinds of work")
    for turns, row in zip(options.turns, rows, strict=True):
        table.add_row(str(turns), *(f"{value:.0f}" if value >= 100 else f"{value:.2f}" for value in row.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
