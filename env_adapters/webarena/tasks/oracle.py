"""Oracle that plays a script: WebArena's actions with elements given by role and name.

    click [link "Add to cart"]                  the first link with this name
    click [button "Add to cart" after "Mallet"] the first one below the first line that contains the text
    click [link "like*" #2]                     the second one whose name begins with the text
    type [textbox "Search"] [mallet] [1]
    goto [__SHOPPING__/basket/]
    stop [$12.50]

The oracle finds the elements in each observation and scrolls down to those that are not in view. Icons and white space
at the ends of names are ignored.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from env_adapters.webarena.browser.grammar import LINE
from env_adapters.webarena.tasks.site_urls import fill_placeholders
from verl_agent.errors import EnvError

TARGET = re.compile(r'\[(\w+) "([^"]*)"(?: #(\d+))?(?: after "([^"]*)")?\]')
ICON = re.compile("[\ue000-\uf8ff]")
MAX_SCROLLS = 20
SCROLL = "scroll [down]"


class OracleError(EnvError):
    """A script cannot be played on the page."""


@dataclass(frozen=True, slots=True)
class ShownNode:
    """Node in a line of an observation.

    Attributes:
        role: accessibility role, for example `link`.
        name: name without icons and outer white space.
    """

    id: str
    role: str
    name: str


def parse_nodes(observation: str) -> Iterator[ShownNode]:
    """Yield the nodes of an observation, from top to bottom."""
    for _, number, role, name in LINE.findall(observation):
        if name:
            yield ShownNode(number, role, " ".join(ICON.sub("", ast.literal_eval(name)).split()))


def find_node(observation: str, role: str, name: str, number: int = 1, after: str = "") -> str | None:
    """Return the id of a node, or None if it is not in view.

    Args:
        name: name of the node, or its beginning followed by `*`.
        number: number of the node among those that match, from 1.
        after: text in the name of a node above it.
    """
    below, left = not after, number
    for node in parse_nodes(observation):
        if not below:
            below = after in node.name
            continue
        matches = node.name.startswith(name[:-1]) if name.endswith("*") else node.name == name
        if node.role == role and matches:
            left -= 1
            if not left:
                return node.id
    return None


class ScriptOracle:
    """Plays a script, one action for each observation."""

    def __init__(self, lines: Sequence[str], urls: Mapping[str, str]) -> None:
        self.lines = [fill_placeholders(line, urls) for line in lines]
        self.next_line = 0
        self.scrolls = 0

    @property
    def done(self) -> bool:
        """True after the last line of the script."""
        return self.next_line >= len(self.lines)

    def act(self, observation: str) -> str:
        if self.done:
            raise OracleError("the script has ended before the task.")
        line = self.lines[self.next_line]
        target = TARGET.search(line)
        if target is None:
            self.next_line += 1
            return line
        role, name, number, after = target.groups()
        element_id = find_node(observation, role, name, int(number or 1), after or "")
        if element_id is None:
            self.scrolls += 1
            if self.scrolls > MAX_SCROLLS:
                raise OracleError(f"line {self.next_line + 1} of the script, {line!r}: the element is not on the page.")
            return SCROLL
        self.next_line, self.scrolls = self.next_line + 1, 0
        return line.replace(target[0], f"[{element_id}]", 1)
