"""A policy for web pages that never stops, for tests of the kill switch."""

import itertools
from collections.abc import Sequence

from verl_agent.types import Message

_COUNT = itertools.count()


def reply(messages: Sequence[Message]) -> str:
    """Return a click on the first link, or a way back."""
    return "```click [2]```" if next(_COUNT) % 2 else "```go_back```"
