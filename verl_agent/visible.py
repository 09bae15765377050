"""Text of others (agents, environments, files, clients) in which every character can be seen."""

import re
import unicodedata

FRAME = "│ "
"""Beginning of each line of a framed text; the next character follows it at once, so no such text can begin a line."""
MOST_MARKS = 4
"""Combining marks on one character; no script needs more. A flood of them would cover the lines above and below."""
_SHORT = {
    "\u00ad": "SHY",
    "\u200b": "ZWSP",
    "\u200c": "ZWNJ",
    "\u200d": "ZWJ",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u061c": "ALM",
    "\u2028": "LS",
    "\u2029": "PS",
    "\u202a": "LRE",
    "\u202b": "RLE",
    "\u202c": "PDF",
    "\u202d": "LRO",
    "\u202e": "RLO",
    "\u2060": "WJ",
    "\u2066": "LRI",
    "\u2067": "RLI",
    "\u2068": "FSI",
    "\u2069": "PDI",
    "\ufeff": "BOM",
}
_BLANK = [
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164)),
    *((0xFFA0, 0xFFA0), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF)),
]
"""Ranges of characters that show nothing although their category is a letter, a symbol or a mark: those with the
property Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, and the empty Braille pattern."""
_EMOJI_STYLE = re.compile("([\u2010-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff#*0-9])\ufe0f")
"""A symbol in its usual form as an emoji, which needs the selector."""
_RUN = re.compile("[^\x00-\u02ff]+")
"""Characters among which combining marks are."""


class _Names(dict[int, str]):
    """Table of `str.translate` that finds the text for a character when it first occurs."""

    def __missing__(self, code: int) -> str:
        self[code] = shown = _shown(chr(code))
        return shown


def _shown(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if character in "\n\t":
        return character
    if code < 0x20 or code == 0x7F:
        return chr(0x2421 if code == 0x7F else 0x2400 + code)
    if category == "Cs":
        return "\ufffd"
    if category[0] == "C" or category in ("Zl", "Zp") or any(first <= code <= last for first, last in _BLANK):
        return f"⟨{_SHORT.get(character, f'U+{code:04X}')}⟩"
    return character


_NAMES = _Names()


def make_visible(text: str) -> str:
    """Return the text with a visible name in place of each character that acts on its surroundings or shows nothing.

    These are control characters (also those of terminals), direction and format characters, separators of lines other
    than a line feed, halves of surrogate pairs, unassigned and private characters, tags, and combining marks beyond
    `MOST_MARKS` or without a character before them. Line feeds, tabs and spaces stay.
    """
    if text.isascii() and (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()):
        return text
    if not text.isascii():
        text = _mark_floods(text)
        parts = _EMOJI_STYLE.split(text)  # symbols with their selector are every second part
        if len(parts) > 1:
            shown = (f"{part}\ufe0f" if number % 2 else part.translate(_NAMES) for number, part in enumerate(parts))
            return "".join(shown)
    return text.translate(_NAMES)


def _mark_floods(text: str) -> str:
    def visible(found: re.Match[str]) -> str:
        start, shown, marks = found.start(), [], ""
        room = 0 if start == 0 or ord(text[start - 1]) < 32 else MOST_MARKS
        for character in f"{found[0]}\n":
            if unicodedata.category(character)[0] == "M":
                marks += character
                continue
            extra = marks[room:]
            named = "".join(f"⟨U+{ord(one):04X}⟩" for one in extra[:MOST_MARKS])
            more = f"⟨{len(extra) - MOST_MARKS} more⟩" if len(extra) > MOST_MARKS else ""
            shown += [marks[:room], named, more, character]
            marks, room = "", MOST_MARKS
        return "".join(shown)[:-1]

    return _RUN.sub(visible, text)


def one_line(text: str) -> str:
    """Return the visible text with names for line feeds and tabs, too."""
    return make_visible(text).replace("\n", "\u240a").replace("\t", "\u2409")


def frame(text: str) -> str:
    """Return the visible text with `FRAME` before each line, so that none of them looks like a line of the program."""
    return "\n".join(f"{FRAME}{line.expandtabs(4)}" for line in make_visible(text).split("\n"))


def is_plain(text: str) -> bool:
    """Return True if the text is what it looks like: printable ASCII in lines, without spaces at the end of one."""
    lines = text.split("\n")
    return all(line.isascii() and line.isprintable() and line == line.rstrip() for line in lines)


def show_bytes(text: str) -> str:
    """Return the bytes of a text in UTF-8, as a literal of Python; a half surrogate pair as its own three bytes."""
    return repr(text.encode("utf-8", "surrogatepass"))
