"""Search for a success: an environment may return values there that no other episode shows."""

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from verl_agent.envs.base import EnvAdapter, Oracle
from verl_agent.envs.schema_samples import sample
from verl_agent.envs.testing.harness import Harness
from verl_agent.envs.testing.violation import boundary
from verl_agent.envs.tools import Tool
from verl_agent.types import Action, Message, TaskItem, ToolCall

EPISODES = 400
"""Most random episodes; an environment that waits plays fewer, for `Harness.budget_s`."""
ORACLE_TURNS, RANDOM_TURNS = 200, 20
"""Most actions of an episode."""
Player = Callable[[Sequence[Message]], Action]
"""Returns the next action for the messages since the last one."""
_PARTS = re.compile(r"[\n,;:|()\[\]{}<>\"'`?!]+|\b(?:and|or)\b")
_WORDS = re.compile(r"[^\W_](?:[\w./-]*\w)?")
MOST_WORDS = 4
"""Most words that follow each other in a message of which an action is made."""


def search_success(harness: Harness) -> str:
    """Play oracles that answer observations, then random actions, until an episode solves its task.

    Returns:
        Number of episodes that were played, for the report.
    """
    until, count = time.monotonic() + harness.budget_s, 0
    for item, player, turns in _players(harness):
        if harness.solved or (count and time.monotonic() > until):
            break
        harness.play_all([partial(_play, harness, item, player, turns)])
        count += 1
    return f"{count}, a success was {'' if harness.solved else 'not '}reached"


def _players(harness: Harness) -> Iterator[tuple[TaskItem, Player, int]]:
    for item in harness.items:
        with boundary(f"oracle({item.id!r})", "Return a function of the observation, or None."):
            oracle = harness.env.oracle(item)
        if oracle is not None:
            yield item, partial(_oracle_action, oracle), ORACLE_TURNS
    for number in range(EPISODES):
        act = partial(random_action, harness.env, random.Random(number))
        yield harness.items[number % len(harness.items)], act, RANDOM_TURNS


def _oracle_action(oracle: Oracle, messages: Sequence[Message]) -> Action:
    return oracle(messages[-1]["content"]).action


async def _play(harness: Harness, item: TaskItem, player: Player, turns: int) -> None:
    session = harness.new_session()
    messages = await harness.reset(session, item)
    for _ in range(turns):
        with boundary(f"oracle({item.id!r})", "Return a function that gives a DemoAction for every observation."):
            action = player(messages)
        result = await harness.step(session, action)
        if result.terminated:
            break
        messages = [{"role": "user", "content": result.observation}]
    await harness.close(session)


def random_action(env: EnvAdapter, draws: random.Random, messages: Sequence[Message]) -> Action:
    """Return a tool of the action format, or a text, with parts and following words of the messages."""
    shown = "\n".join(message["content"] for message in messages)
    parts = [part for part in (part.strip(" .*-•") for part in _PARTS.split(shown)) if part]
    words = _WORDS.findall(shown)
    begins = [draws.randrange(len(words)) for _ in range(len(parts) + 1)] if words else []
    texts = [*parts, *(" ".join(words[begin : begin + draws.randint(1, MOST_WORDS)]) for begin in begins)] or [""]
    if env.action_format.tools and draws.random() < 0.7:
        return _filled(draws.choice(env.action_format.tools), texts, draws)
    text = draws.choice(texts)
    return text if draws.random() < 0.7 else env.action_format.action_with(text)


def _filled(tool: Tool, texts: Sequence[str], draws: random.Random) -> Action:
    """Return an action of a tool with arguments drawn from texts and small numbers."""
    numbers = [int(text[:15]) for text in texts if text.isdecimal()] + list(range(10))
    values = dict(sample(tool.schema_of_arguments, draws))
    for name, schema in tool.parameters.get("properties", {}).items():
        kind = "" if "enum" in schema else schema.get("type")
        if name in values and kind in ("string", "integer"):
            values[name] = draws.choice(texts if kind == "string" else numbers)
    if not tool.line:
        return ToolCall(tool.name, values)
    return re.sub(r"\{(\w+)\}", lambda slot: str(values[slot[1]]), tool.line)
