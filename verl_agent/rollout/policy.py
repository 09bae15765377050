"""The interface of policies, which write the replies of an episode."""

from collections.abc import Sequence
from typing import Protocol

from verl_agent.types import Message, Reply


class Policy(Protocol):
    """Author of the replies: a model behind an engine, an endpoint, or a script."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Return the next assistant message.

        If the token budget leaves no room for a reply, return one with `truncated_by` and without tokens.

        Raises:
            OverlongPromptError: the prompt of the episode exceeds its budget.
        """
        ...
