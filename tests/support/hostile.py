"""Policies whose replies act on a terminal that shows them as they are; see `tests.support.terminals.HOSTILE`."""

from collections.abc import Sequence
from typing import Any

from tests.support.terminals import HOSTILE

ACTION = "".join(HOSTILE.values())
IMITATION = "ls" + " " * 74 + "── action: ls" + " " * 60 + "── /approve carries it out; /end [reason] ends the episode"
"""Action of one line that would begin other lines of a terminal with 80 columns by itself."""


def everything(messages: Sequence[Any]) -> str:
    """Return an action with every kind of hostile character."""
    return f"Action: {ACTION}"


def imitating(messages: Sequence[Any]) -> str:
    """Return an action that imitates a question about another one."""
    return f"Action: {IMITATION}"


def failing(messages: Sequence[Any]) -> str:
    """Raise an error with a hostile message."""
    raise RuntimeError(ACTION)
