"""Text protocol: read queries and answers, and render the passages that a search returned."""

from collections.abc import Sequence

from env_adapters.deepsearch.corpus import Passage
from verl_agent.envs.parsing import shorten

MAX_TITLE = 100
"""Characters of a title that are shown."""
NOTHING = "No passage was found. Search in other words."


def plain(text: str) -> str:
    """Return a query or an answer on one line, without the quotes and code marks around it."""
    return " ".join(text.split()).strip("`\"' ")


def describe(passages: Sequence[Passage], max_chars: int) -> str:
    """What a search found, as AgentGym writes it.

    Args:
        passages: the best first.
        max_chars: characters of each text that are shown, >= 1.
    """
    docs = [
        f'Doc {number}(Title: "{shorten(passage.title, MAX_TITLE)}") {shorten(passage.text, max_chars)}'
        for number, passage in enumerate(passages, 1)
    ]
    return "<information>" + ("\n".join(docs) or NOTHING) + "</information>"
