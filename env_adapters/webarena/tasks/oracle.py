"""Scripts that solve tasks: WebArena's actions with elements by role and name, resolved on the page as it is seen.

    click [link "Add to cart"]                  the first link of that name
    click [button "Add to cart" after "Mallet"] the first one below the first line that holds these words
    click [link "like*" #2]                     the second one whose name begins so
    type [textbox "Search"] [mallet] [1]
    goto [__SHOPPING__/basket/]
    stop [$12.50]

What is not in view is scrolled to. Icons and spaces at the ends of names do not count. Knows no browser.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from verl_agent.errors import EnvError

NODE = re.compile(r"^\t*\[(-?\d+)\] (\w+) ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", re.MULTILINE)
TARGET = re.compile(r'\[(\w+) "([^"]*)"(?: #(\d+))?(?: after "([^"]*)")?\]')
ICON = re.compile("[\ue000-\uf8ff]")
MAX_SCROLLS = 20
SCROLL = "scroll [down]"


class OracleError(EnvError):
    """A script does not fit the page."""


@dataclass(frozen=True, slots=True)
class Node:
    """A line of an observation.

    Attributes:
        id: its number.
        role: such as `link`.
        name: without icons and spaces at its ends.
    """

    id: str
    role: str
    name: str


def nodes(observation: str) -> Iterator[Node]:
    """The nodes of an observation, from top to bottom."""
    for number, role, name in NODE.findall(observation):
        yield Node(number, role, clean(ast.literal_eval(name)))


def clean(name: str) -> str:
    """A name without icons, and with single spaces."""
    return " ".join(ICON.sub("", name).split())


def find(observation: str, role: str, name: str, number: int = 1, after: str = "") -> str | None:
    """The id of a node, or None if it is not in view.

    Args:
        observation: what is seen.
        role: of the node.
        name: of the node; with `*` at its end, how the name begins.
        number: which one of several, from 1.
        after: words in the name of a node above it.
    """
    below, left = not after, number
    for node in nodes(observation):
        if not below:
            below = after in node.name
            continue
        fits = node.name.startswith(name[:-1]) if name.endswith("*") else node.name == name
        if node.role == role and fits:
            left -= 1
            if not left:
                return node.id
    return None


class Oracle:
    """Plays a script, one action for each observation.

    Args:
        lines: the script.
        urls: addresses of the sites, by WebArena's name.
    """

    def __init__(self, lines: Sequence[str], urls: Mapping[str, str]) -> None:
        self.lines = [fill_in(line, urls) for line in lines]
        self.place = 0
        self.scrolls = 0

    @property
    def done(self) -> bool:
        """Whether the script is at its end."""
        return self.place >= len(self.lines)

    def act(self, observation: str) -> str:
        """The next action.

        Raises:
            OracleError: the script is at its end, or what it names is not on the page.
        """
        if self.done:
            raise OracleError("the script is at its end, and the task is not.")
        line = self.lines[self.place]
        target = TARGET.search(line)
        if target is None:
            self.place += 1
            return line
        role, name, number, after = target.groups()
        found = find(observation, role, name, int(number or 1), after or "")
        if found is None:
            self.scrolls += 1
            if self.scrolls > MAX_SCROLLS:
                raise OracleError(f"line {self.place + 1} of the script, {line!r}: it is not on the page.")
            return SCROLL
        self.place, self.scrolls = self.place + 1, 0
        return line.replace(target[0], f"[{found}]", 1)


def fill_in(text: str, urls: Mapping[str, str]) -> str:
    """A text with addresses for WebArena's placeholders, such as `__SHOPPING__`."""
    for site in sorted(urls, key=len, reverse=True):
        text = text.replace(f"__{site.upper()}__", urls[site])
    return text
