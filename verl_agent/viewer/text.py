"""Text of models and environments, prepared for a page: hostile characters are visible, long text is cut."""

import unicodedata
from collections.abc import Iterable

from verl_agent.visible import make_visible

MAX_SHOWN = 20_000
"""Characters of one text that a page shows at first."""
MAX_NAME = 200
"""Characters of a name, such as that of a task, in a line of other text."""
_BARS = "▁▂▃▄▅▆▇█"


def short_name(name: str) -> str:
    """Return a name for a line of other text: visible, cut to `MAX_NAME`, isolated if it is written from the right."""
    shown = make_visible(name[:MAX_NAME]) + ("…" if len(name) > MAX_NAME else "")
    from_right = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in shown)
    return f"\u2068{shown}\u2069" if from_right else shown


def sparkline(shares: Iterable[float], most: int = 40) -> str:
    """Return shares, 0 to 1, as a row of bars, at most `most` of them."""
    values = list(shares)
    every = -(-len(values) // most) or 1
    return "".join(_BARS[round(value * (len(_BARS) - 1))] for value in values[::-1][::every][::-1])
