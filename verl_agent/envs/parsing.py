"""Parser of model replies: find the action that a reply marks, and return it as the model wrote it.

The parser tolerates variations of the mark: case, spaces, Markdown emphasis, code fences, thinking blocks. It does
not change the action: quotes, line breaks, indentation and inner spaces stay. Adapters normalize what they accept.
"""

import re
from collections.abc import Collection, Iterator

MARKER = re.compile(r"(?<![^\W_])([*_]{0,3})action([\s*_]{0,9}):", re.IGNORECASE)
LINE_START = re.compile(r"^[ \t>#*_-]{0,20}\Z", re.MULTILINE)
"""Text between the beginning of a line and a marker that counts as the first thing on its line."""
THINK = re.compile(r"<\s{0,3}(/?)\s{0,3}think\s{0,3}>", re.IGNORECASE)
FENCE = re.compile(r"(?<!`)(`{3,20})(?!`)(?:[ \t]{0,9}[\w+#.-]{0,30}[ \t]{0,9}\r?(\n))?(.*?)\1", re.DOTALL)
FENCE_LINE = re.compile(r"`{3,}[\w+#.-]*")


def last_action(reply: str) -> str | None:
    r"""Return the first line of text after the last `Action:`, or None if there is no such line.

    A marker at the beginning of a line takes precedence over one inside a line. One balanced pair of backticks or
    asterisks around the whole line is removed. Text inside `<think>` is ignored.

    Example:
        >>> last_action("Thought: wood first.\nAction: get 1 oak log")
        'get 1 oak log'
        >>> last_action("Action: select * from books where author='Brown'")
        "select * from books where author='Brown'"
    """
    return next(filter(None, map(_last_line, readable(reply))), None)


def first_tag(reply: str, names: Collection[str]) -> tuple[str, str] | None:
    """Return name and text of the first of the tags `names`, or None.

    Later tags are ignored because the model wrote them before it saw the first result. Text inside `<think>` is
    ignored too. Without a closing tag the text ends with its line or at the next `<`.

    Example:
        >>> first_tag("<think>I need <search></think> <search>France capital</search>", ("search", "answer"))
        ('search', 'France capital')
    """
    tag = re.compile(rf"<\s{{0,3}}(/?)\s{{0,3}}({'|'.join(map(re.escape, names))})\s{{0,3}}>", re.IGNORECASE)
    return next(filter(None, (_first_tag(part, tag) for part in readable(reply))), None)


def last_fence(reply: str) -> str | None:
    r"""Return the text inside the last triple backticks, or None.

    The name of a language on the opening line is dropped. Line breaks and indentation stay. A fence may have more
    than three backticks, so that the text can hold three.

    Example:
        >>> last_fence("In summary, the next action I will perform is ```click [12]```")
        'click [12]'
        >>> last_fence("```python\nfor x in y:\n    print(x)\n```")
        'for x in y:\n    print(x)'
    """
    for part in readable(reply):
        for _, newline, text in reversed(FENCE.findall(part)):
            if action := trim(newline + text):
                return action
    return None


def readable(reply: str) -> Iterator[str]:
    """Yield the parts of a reply that may hold its action, the most likely part first.

    Thinking blocks are left out, except one that is never closed. If the reply closes a block that the prompt
    opened, the text before the closing tag is the second part.
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


def trim(text: str) -> str:
    """Return `text` without the white space around it; the indentation of its first line stays.

    Spaces before the first word are indentation only if a line break precedes them.
    """
    text = text.rstrip()
    body = text.lstrip()
    head = text[: len(text) - len(body)]
    return head.rpartition("\n")[2] + body if "\n" in head else body


def unwrap(text: str) -> str:
    """Return `text` without one balanced pair of backticks or asterisks around all of it.

    Example:
        >>> unwrap("`get 1 oak log`"), unwrap("`a` or `b`"), unwrap("select *")
        ('get 1 oak log', '`a` or `b`', 'select *')
    """
    mark = re.match(r"`+|\*{1,3}", text)
    if mark is None or len(text) <= 2 * len(mark[0]) or not text.endswith(mark[0]):
        return text
    inner = text[len(mark[0]) : -len(mark[0])]
    return text if mark[0] in inner else inner.strip()


def shorten(text: str, limit: int = 100) -> str:
    """Return `text`, truncated to at most `limit` characters; an ellipsis marks the truncation."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _last_line(reply: str) -> str | None:
    marker, at_line_start = None, False
    for match in MARKER.finditer(reply):
        leads = LINE_START.search(reply, max(0, match.start() - 20), match.start()) is not None
        if leads or not at_line_start:
            marker, at_line_start = match, leads
    if marker is None:
        return None
    rest, closing = reply[marker.end() :], ""
    emphasis = marker[1]
    if emphasis and emphasis not in marker[2]:  # `**Action:** text` or `**Action: text**`
        if rest.startswith(emphasis):
            rest = rest.removeprefix(emphasis)
        else:
            closing = emphasis
    for line in re.split(r"\r\n|\r|\n", rest):
        text = line.strip().removesuffix(closing).rstrip()
        if text and not FENCE_LINE.fullmatch(text):
            return unwrap(text) or None
    return None


def _first_tag(reply: str, tag: re.Pattern[str]) -> tuple[str, str] | None:
    opened: re.Match[str] | None = None
    for match in tag.finditer(reply):
        if not match[1]:
            opened = match
        elif opened and opened[2].lower() == match[2].lower():
            return match[2].lower(), trim(reply[opened.end() : match.start()])
    if opened is None:
        return None
    rest = re.split(r"[\n<]", reply[opened.end() :].strip(), maxsplit=1)[0]
    return opened[2].lower(), rest.strip()
