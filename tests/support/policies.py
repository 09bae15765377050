"""Policies of plain Python that tests name by their path."""

import itertools
import re
import time
from collections.abc import Sequence

from verl_agent.types import Message

BUTTON = re.compile(r"\[(\d+)\] button 'Buy'")
_COUNT = itertools.count()


def seven(messages: Sequence[Message]) -> str:
    return "Thought: it is always seven.\nAction: 7"


def buy(messages: Sequence[Message]) -> str:
    """Return a click on the button `Buy` of the last page, after a second in which a person can come or go."""
    time.sleep(1)
    shown = " ".join(message["content"] for message in messages if message["role"] != "assistant")
    return f"I need it. ```click [{BUTTON.findall(shown)[-1]}]```"


def wander(messages: Sequence[Message]) -> str:
    """Return a click on the first link, or a way back, without end."""
    return "```click [2]```" if next(_COUNT) % 2 else "```go_back```"
