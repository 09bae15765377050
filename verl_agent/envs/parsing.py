"""The parser: read actions out of a model's reply, and quote replies without quoting a megabyte.

Tolerant in what is accepted (upper and lower case, spaces, Markdown, code fences, thinking blocks), exact in what
is handed on.
"""

import re
from collections.abc import Collection, Iterator

MARKER = re.compile(r"(?<![^\W_])action[\s*_]{0,9}:", re.IGNORECASE)
THINK = re.compile(r"<\s{0,3}(/?)\s{0,3}think\s{0,3}>", re.IGNORECASE)
FENCE = re.compile(r"```(?:[ \t]{0,9}\w{0,30}[ \t]{0,9}\n)?(.*?)```", re.DOTALL)


def last_action(reply: str) -> str | None:
    r"""The first line of text after the last `Action:`, or None if there is none.

    Upper and lower case, Markdown emphasis and code fences around the action do not matter, and what is said inside
    `<think>` does not count.

    Example:
        >>> last_action("Thought: wood first.\nAction: get 1 oak log")
        'get 1 oak log'
    """
    return next(filter(None, map(_last_line, readable(reply))), None)


def first_tag(reply: str, names: Collection[str]) -> tuple[str, str] | None:
    """Name and text of the first of the tags `names`, or None.

    What follows it was written without knowing what it brings, so it does not count; nor does what is said inside
    `<think>`. The closing tag may be missing. The text comes on one line, without quotes and code marks around it.

    Example:
        >>> first_tag("<think>I need <search></think> <search>France capital</search>", ("search", "answer"))
        ('search', 'France capital')
    """
    tag = re.compile(rf"<\s{{0,3}}(/?)\s{{0,3}}({'|'.join(map(re.escape, names))})\s{{0,3}}>", re.IGNORECASE)
    return next(filter(None, (_first_tag(part, tag) for part in readable(reply))), None)


def last_fence(reply: str) -> str | None:
    """The text inside the last triple backticks, on one line, or None; a name of a language does not count.

    Example:
        >>> last_fence("In summary, the next action I will perform is ```click [12]```")
        'click [12]'
    """
    for part in readable(reply):
        for found in reversed(FENCE.findall(part)):
            if text := one_line(found):
                return text
    return None


def readable(reply: str) -> Iterator[str]:
    """The parts of a reply that may hold its action, the best first.

    Thinking blocks are left out, but for one that is never closed. Where the prompt has opened the block already, so
    that the reply only closes it, what stands before is the second choice.
    """
    outside: list[str] = []
    head, opened, start = "", None, 0
    for number, tag in enumerate(THINK.finditer(reply)):
        if tag[1] and number == 0:
            head, start = reply[: tag.start()], tag.end()
        elif tag[1] and opened is not None:
            opened, start = None, tag.end()
        elif not tag[1] and opened is None:
            outside.append(reply[start : tag.start()])
            opened, start = tag, tag.end()
    outside.append(reply[start:])
    yield "\n".join(outside)
    if head:
        yield head


def one_line(text: str) -> str:
    """Text with single spaces, without quotes and code marks around it."""
    return " ".join(text.split()).strip("`\"' ")


def shorten(text: str, limit: int = 100) -> str:
    """`text`, cut to at most `limit` characters; the cut shows as an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _last_line(reply: str) -> str | None:
    start = None
    for found in MARKER.finditer(reply):
        start = found.end()
    if start is None:
        return None
    for line in reply[start:].splitlines():
        text = line.strip()
        if re.fullmatch(r"```\w+", text):  # opens a fence and names a language
            continue
        text = text.lstrip("`*_ \t").rstrip("`* \t")
        if text:
            return text
    return None


def _first_tag(reply: str, tag: re.Pattern[str]) -> tuple[str, str] | None:
    opened: re.Match[str] | None = None
    for found in tag.finditer(reply):
        if not found[1]:
            opened = found
        elif opened and opened[2].lower() == found[2].lower():
            return found[2].lower(), one_line(reply[opened.end() : found.start()])
    if opened is None:
        return None
    rest = re.split(r"[\n<]", reply[opened.end() :].strip(), maxsplit=1)[0]
    return opened[2].lower(), one_line(rest)
