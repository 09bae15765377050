"""A policy for a shop that buys again and again, for tests of people who decide on its actions."""

import re
import time
from collections.abc import Sequence

from verl_agent.types import Message

BUTTON = re.compile(r"\[(\d+)\] button 'Buy'")


def reply(messages: Sequence[Message]) -> str:
    """Return a click on the button `Buy` of the last page, after a second in which a person can come or go."""
    time.sleep(1)
    shown = " ".join(message["content"] for message in messages if message["role"] != "assistant")
    return f"I need it. ```click [{BUTTON.findall(shown)[-1]}]```"
