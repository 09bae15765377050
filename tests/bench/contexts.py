"""Success and cost of an episode with and without a shorter context, where success needs memory.

python -m tests.bench.contexts [--tasks 50] [--turns 15] [--words 200]

A scripted player searches a number from 1 to 1,000 by halves. It knows what the visible messages say and nothing else,
so a model's mistakes play no part. Long observations make the context expensive. Cost is counted in tokens.
"""

import argparse
import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from env_adapters.guess_number.adapter import GuessNumber
from tests.support.tokens import load_model
from verl_agent.agents.context import Context, KeepAll, LastObservations, Summary
from verl_agent.agents.plain import Act
from verl_agent.rollout.chat_template import choose_builder
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.tokens import EpisodeTokens, encode_reply
from verl_agent.types import Episode, Message, Reply, StepResult, TaskItem

HIGH = 1000
CONTEXTS: Sequence[Context] = (
    KeepAll(),
    LastObservations(2, 1),
    LastObservations(2, 4),
    Summary(2, 1),
    Summary(2, 4),
)
BOUNDS = re.compile(r"from (\d+) to (\d+)")
GUESS = re.compile(r"Action: (\d+)")


class Wordy(GuessNumber):
    """Game whose answers are long."""

    def __init__(self, words: int) -> None:
        super().__init__(ranges=[HIGH])
        self._words = words

    async def step(self, action: str) -> StepResult:
        step = await super().step(action)
        return StepResult(step.observation + " and so on" * (self._words // 3), step.reward, step.terminated, step.info)


@dataclass(slots=True)
class Player:
    """Scripted policy that counts tokens.

    Attributes:
        read: tokens of all requests.
        computed: those that the engine has not in its prefix cache, with the replies.
    """

    tokenizer: Any
    tokens: EpisodeTokens
    summarizes: bool
    read: int = 0
    computed: int = 0
    _known: list[int] = field(default_factory=list)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Guess the middle of what the visible messages leave."""
        self.tokens.add_messages(messages)
        ids = self.tokens.ids
        cached = next((n for n, (a, b) in enumerate(zip(ids, self._known, strict=False)) if a != b), len(self._known))
        low, high = bounds(messages)
        text = f"Action: {(low + high) // 2}"
        if self.summarizes:
            text = f"Summary: it is from {low} to {high}\n{text}"
        written = encode_reply(self.tokenizer, text, self.tokens.end_of_turn)
        self.read += len(ids)
        self.computed += len(ids) - cached + len(written)
        self.tokens.add_reply(text, written)
        self._known = list(self.tokens.ids)
        return Reply(text, tokens=len(written))


def bounds(messages: Sequence[Message]) -> tuple[int, int]:
    """Return the smallest and the largest number that the messages leave."""
    lows, highs = [1], [HIGH]
    for message, after in zip(messages, [*messages[1:], {"content": ""}], strict=True):
        for low, high in BOUNDS.findall(message["content"]):
            lows.append(int(low))
            highs.append(int(high))
        guess = GUESS.search(message["content"])
        if guess and after["content"].startswith("Higher"):
            lows.append(int(guess[1]) + 1)
        if guess and after["content"].startswith("Lower"):
            highs.append(int(guess[1]) - 1)
    return max(lows), min(highs)


def play_once(builder: Any, item: TaskItem, context: Context, turns: int, words: int) -> tuple[Episode, Player]:
    """Play a task; `builder` is verl's renderer of messages."""
    tokenizer, env = builder.tokenizer, Wordy(words)
    player = Player(tokenizer, EpisodeTokens(builder, tokenizer.eos_token_id), isinstance(context, Summary))
    agent = Act(env.action_format, context)
    return asyncio.run(play_episode(item, env, agent, player, EpisodeLimits(turns))), player


def row(builder: Any, items: Sequence[TaskItem], context: Context, turns: int, words: int) -> list[str]:
    """Return the row of a context."""
    played = [play_once(builder, item, context, turns, words) for item in items]
    segments = [player.tokens.segments() for _, player in played]
    rows = [len(one) for one in segments]
    update = [sum(len(row.prompt_ids) + len(row.response_ids) for row in one) for one in segments]
    longest = max(len(row.prompt_ids) + len(row.response_ids) for one in segments for row in one)
    numbers = [
        fmean(len(episode.turns) for episode, _ in played),
        fmean(player.read for _, player in played),
        fmean(player.computed for _, player in played),
        fmean(rows),
        fmean(update),
    ]
    kind = f"{context.keep}, {context.turns} turns, stride {context.stride}" if context.edits else context.keep
    solved = fmean(episode.success for episode, _ in played)
    return [kind, f"{solved:.0%}", *(f"{number:,.1f}" for number in numbers), f"{longest:,}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Play, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.contexts", description="Measure contexts.")
    parser.add_argument("--tasks", type=int, default=50, help="number of tasks (default 50)")
    parser.add_argument("--turns", type=int, default=15, help="turn limit (default 15)")
    parser.add_argument("--words", type=int, default=200, help="words of an observation, about (default 200)")
    options, model = parser.parse_args(arguments), load_model()
    builder = choose_builder(model.tokenizer, model.model_type, model.options)
    items = GuessNumber(ranges=[HIGH]).tasks("train")[:: max(1, HIGH // options.tasks)][: options.tasks]
    table = Table("context", "success", "turns", "read", "computed", "rows", "update", "longest row")
    for context in CONTEXTS:
        table.add_row(*row(builder, items, context, options.turns, options.words))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
