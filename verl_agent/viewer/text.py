"""Text of models and environments, prepared for a page: hostile characters are visible, long text is cut."""

import unicodedata

from verl_agent.trace.turn_record import TurnRecord
from verl_agent.visible import make_visible

MAX_SHOWN = 20_000
"""Characters of one text that a page shows at first."""
MAX_NAME = 200
"""Characters of a name, such as that of a task, in a line of other text."""


def cut_text(text: str, limit: int = MAX_SHOWN) -> tuple[str, int]:
    """Return the visible text, cut to about `limit` characters, and the number of characters that are left out."""
    return make_visible(text[:limit]), max(0, len(text) - limit)


def short_name(name: str) -> str:
    """Return a name for a line of other text: visible, cut to `MAX_NAME`, isolated if it is written from the right."""
    shown, left_out = cut_text(name, MAX_NAME)
    shown += "…" if left_out else ""
    from_right = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in shown)
    return f"\u2068{shown}\u2069" if from_right else shown


def split_reply(reply: str, action: str | None) -> tuple[str, str, str]:
    """Return the parts of a reply before, in and after its action; without one, all of it is the first part."""
    start = reply.rfind(action) if action else -1
    if action is None or start < 0:
        return reply, "", ""
    return reply[:start], action, reply[start + len(action) :]


def describe_decision(turn: TurnRecord) -> str:
    """Return who wrote a turn and who decided on it, in a line; "" where the policy wrote it and nobody decided."""
    parts = [f"written by the {turn['author']}"] if "author" in turn else []
    if review := turn.get("review"):
        by = "a rule" if review["by"] == "rule" else f"the {review['by']}"
        reason = f": {review['reason']}" if review["reason"] else ""
        parts.append(f"{review['decision'].replace('_', ' ')} by {by}{reason} ({review['seconds']:.1f} s)")
    return "; ".join(parts)
