"""Conversation of a program as texts of an episode: each request of the program is an observation, and back.

An episode alternates replies and observations. A program may send anything: it may add several messages to its
conversation, change what was said, or begin another conversation. An observation therefore says how the next
conversation follows from the last one. The usual case, one new user message, is that message as it is; any other is
`MARK` and JSON, with the number of messages that stay and the new ones after them.
"""

import json
from collections.abc import Sequence

from verl_agent.types import Message

MARK = "[conversation] "
"""Text that begins an observation which is not a single new user message."""


def to_observation(before: Sequence[Message], after: Sequence[Message]) -> str:
    """Return the text from which `next_conversation` makes `after`.

    Args:
        before: conversation of the last request, with its reply.
        after: conversation of the next request; it ends with a user message.
    """
    kept = 0
    while kept < min(len(before), len(after)) and before[kept] == after[kept]:
        kept += 1
    new = after[kept:]
    if kept == len(before) and len(new) == 1 and not new[0]["content"].startswith(MARK):
        return new[0]["content"]
    return MARK + json.dumps({"keep": kept, "messages": new}, ensure_ascii=False)


def next_conversation(before: Sequence[Message], observation: str) -> list[Message]:
    """Return the conversation of the next request."""
    if not observation.startswith(MARK):
        return [*before, {"role": "user", "content": observation}]
    change = json.loads(observation.removeprefix(MARK))
    return [*before[: change["keep"]], *change["messages"]]


def conversation_at(messages: Sequence[Message], prompt_length: int) -> list[Message]:
    """Return the conversation that the program sent last.

    Args:
        messages: messages of the episode, which do not end with a reply.
        prompt_length: number of messages before the first reply.
    """
    conversation = list(messages[:prompt_length])
    for reply, observation in zip(messages[prompt_length::2], messages[prompt_length + 1 :: 2], strict=True):
        conversation = next_conversation([*conversation, reply], observation["content"])
    return conversation
