"""Text of models and environments, prepared for a page: hostile characters are made visible, long text is cut."""

import re

MAX_SHOWN = 20_000
"""Characters of one text that a page shows at first."""
_NAMES = {
    **{chr(code): chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    "\x7f": "\u2421",
    "\u200b": "⟨ZWSP⟩",
    "\u200e": "⟨LRM⟩",
    "\u200f": "⟨RLM⟩",
    "\u202a": "⟨LRE⟩",
    "\u202b": "⟨RLE⟩",
    "\u202c": "⟨PDF⟩",
    "\u202d": "⟨LRO⟩",
    "\u202e": "⟨RLO⟩",
    "\u2066": "⟨LRI⟩",
    "\u2067": "⟨RLI⟩",
    "\u2068": "⟨FSI⟩",
    "\u2069": "⟨PDI⟩",
    "\ufeff": "⟨BOM⟩",
}
_CONTROL = re.compile("[" + "".join(map(re.escape, _NAMES)) + "\ud800-\udfff]")


def make_visible(text: str) -> str:
    """Return the text with a visible name in place of each control and direction character."""
    return _CONTROL.sub(lambda match: _NAMES.get(match[0], "\ufffd"), text)


def shorten(text: str, limit: int = MAX_SHOWN) -> tuple[str, int]:
    """Return the visible text, cut to about `limit` characters, and the number of characters that are left out."""
    return make_visible(text[:limit]), max(0, len(text) - limit)


def split_reply(reply: str, action: str | None) -> tuple[str, str, str]:
    """Return the parts of a reply before, in and after its action; without one, all of it is the first part."""
    start = reply.rfind(action) if action else -1
    if action is None or start < 0:
        return reply, "", ""
    return reply[:start], action, reply[start + len(action) :]
