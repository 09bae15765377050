"""Parser of model replies: find the action that a reply marks, and return it as the model wrote it.

The parser tolerates variations of the mark: case, spaces, Markdown emphasis, code fences, thinking blocks. It does
not change the action: quotes, line breaks, indentation and inner spaces stay. Adapters normalize what they accept.
"""

import re
from collections.abc import Collection, Iterator

MARKER = re.compile(r"(?<![^\W_])[*_]{0,3}action[\s*_]{0,9}:", re.IGNORECASE)
LINE_START = re.compile(r"^[ \t>#*_-]{0,20}\Z", re.MULTILINE)
"""Text between the beginning of a line and a marker that counts as the first thing on its line."""
THINK = re.compile(r"<\s{0,3}(/?)\s{0,3}think\s{0,3}>", re.IGNORECASE)
THOUGHT = re.compile(r"\s*(?:summary:[^\n]*\s+)?(<think>)", re.IGNORECASE)
"""Begin of a reply with a thought, after the line that `verl_agent.agents.context.Summary` adds."""
FENCE = re.compile(r"(?<!`)(`{3,20})(?!`)(?:[ \t]{0,9}([\w+#.-]{0,30})[ \t]{0,9}\r?(\n))?(.*?)\1", re.DOTALL)
LANGUAGES = frozenset(
    re.findall(
        r"\w+",
        "action bash c cmd console cpp css go html java javascript js json jsonc latex lisp lua markdown md mysql none "
        "perl php plain plaintext postgresql powershell ps1 py python python3 r ruby rust sh shell sql sqlite text "
        "toml tool_call tool_code ts txt typescript xml yaml yml zsh",
    )
)
"""Names on the opening line of a fence that are never part of an action."""
FENCE_LINE = re.compile(r"^[ \t]{0,20}(`{3,})[\w+#.-]{0,30}[ \t]{0,20}\r?$", re.MULTILINE)
EMPHASIS = re.compile(r"\*{1,3}|_{1,3}")
MAX_LEAD = 20
"""Most characters before emphasis that begins a line, such as those of a list or a quotation."""
LINE_BREAK = re.compile(r"\r\n|\r|\n")


def last_action(reply: str) -> str | None:
    r"""Return the first line of text after the last `Action:`, or None if there is no such line.

    A marker at the beginning of a line takes precedence over one inside a line. Marks around the whole line are
    removed (see `unwrap`), and so is the end of emphasis or of a fence that begins before the action. Text inside
    `<think>` is ignored.

    Example:
        >>> last_action("Thought: wood first.\nAction: get 1 oak log")
        'get 1 oak log'
        >>> last_action("Action: select * from books where author='Brown'")
        "select * from books where author='Brown'"
    """
    return next(filter(None, map(_last_line, readable_parts(reply))), None)


def first_tag(reply: str, names: Collection[str]) -> tuple[str, str] | None:
    """Return name and text of the first of the tags `names`, or None.

    Later tags are ignored because the model wrote them before it saw the first result. Text inside `<think>` is
    ignored too. Without a closing tag the text ends with its line or at the next `<`.

    Example:
        >>> first_tag("<think>I need <search></think> <search>France capital</search>", ("search", "answer"))
        ('search', 'France capital')
    """
    tag = re.compile(rf"<\s{{0,3}}(/?)\s{{0,3}}({'|'.join(map(re.escape, names))})\s{{0,3}}>", re.IGNORECASE)
    return next(filter(None, (_first_tag(part, tag) for part in readable_parts(reply))), None)


def last_fence(reply: str) -> str | None:
    r"""Return the text inside the last triple backticks, or None.

    The name of a language on the opening line is dropped. Another word there is part of the action, unless it is in
    lower case and the closing fence has a line of its own. Line breaks and indentation stay. A fence may have more
    than three backticks, so that the text can hold three.

    Example:
        >>> last_fence("In summary, the next action I will perform is ```click [12]```")
        'click [12]'
        >>> last_fence("```python\nfor x in y:\n    print(x)\n```")
        'for x in y:\n    print(x)'
    """
    for part in readable_parts(reply):
        for _, name, newline, text in reversed(FENCE.findall(part)):
            closed_on_own_line = re.search(r"\n[ \t]*\Z", text) is not None
            is_label = name.lower() in LANGUAGES or (name.islower() and closed_on_own_line)
            if action := trim(("" if is_label else name) + newline + text) or name:
                return action
    return None


def readable_parts(reply: str) -> Iterator[str]:
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


def thought_marks(reply: str) -> list[tuple[int, int]]:
    """Return start and end of the tags around the thought that begins a reply."""
    first = THOUGHT.match(reply)
    if first is None:
        return []
    close = reply.find("</think>", first.end())
    return [first.span(1), (close, close + len("</think>"))] if close >= 0 else [first.span(1)]


def trim(text: str) -> str:
    """Return `text` without the white space around it; the indentation of its first line stays.

    Spaces before the first word are indentation only if a line break precedes them.
    """
    text = text.rstrip()
    body = text.lstrip()
    head = text[: len(text) - len(body)]
    return head.rpartition("\n")[2] + body if "\n" in head else body


def unwrap(text: str) -> str:
    """Return `text` without balanced asterisks around all of it, then without one balanced pair of backticks.

    Text inside backticks stays as it is, so backticks protect any action.

    Example:
        >>> unwrap("`get 1 oak log`"), unwrap("`a` or `b`"), unwrap("select *"), unwrap("**`ls`**")
        ('get 1 oak log', '`a` or `b`', 'select *', 'ls')
    """
    while mark := re.match(r"`+|\*{1,3}", text):
        inner = text[len(mark[0]) : -len(mark[0])]
        if not inner or not text.endswith(mark[0]) or mark[0] in inner:
            break
        text = inner.strip()
        if mark[0].startswith("`"):
            break
    return text


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
    before, rest = reply[: marker.end()], reply[marker.end() :]
    closing = _open_emphasis(LINE_BREAK.split(before)[-1])
    if rest.startswith(closing):  # `**Action:** text` and not `**Action: text**`
        rest, closing = rest.removeprefix(closing), ""
    fences = FENCE_LINE.findall(before)
    fence = fences[-1] if len(fences) % 2 else ""
    lines = [line.strip() for line in LINE_BREAK.split(rest)]
    for index, text in enumerate(lines):
        if opening := FENCE_LINE.fullmatch(text):
            fence = opening[1]
        elif text:
            if unwrap(text) == text:
                text = text.removesuffix(fence if fence not in lines[index + 1 :] else "").rstrip()
                text = text.removesuffix(closing).rstrip()
            return unwrap(text) or None
    return None


def _open_emphasis(text: str) -> str:
    """Return the asterisks and underscores that close the emphasis left open by `text`, a line up to its marker.

    Emphasis opens before a word, at the beginning of the line or after a space. One character alone opens it only at
    the beginning of the line or directly before `Action`, because `*args` is ordinary text.
    """
    opened: list[str] = []
    for run in EMPHASIS.finditer(text):
        start, end = run.span()
        previous, following = text[start - 1 : start], text[end : end + 6]
        at_start = start <= MAX_LEAD and not text[:start].strip(" \t>#-")
        at_word = (not previous.strip() or previous in "*_") and re.match(r"[\w*]", following) is not None
        if opened and opened[-1] == run[0]:
            opened.pop()
        elif following.lower() == "action" or (at_word and (at_start or len(run[0]) > 1)):
            opened.append(run[0])
    return "".join(reversed(opened))


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
