"""Drawings of an episode's states, which an adapter returns and the viewer shows below each turn.

They hold text and numbers only. The viewer decides how they look, and shows every text as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "grey", "black", "white")
"""Colors of cells; another one is drawn black."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a grid.

    Attributes:
        text: one character or a few; empty for an empty cell.
        color: color of the text, one of `COLORS`.
        fill: color of the background, one of `COLORS`.
    """

    text: str = ""
    color: str = "black"
    fill: str = "white"


@dataclass(frozen=True, slots=True)
class Grid:
    """Map of cells, such as a grid world.

    Attributes:
        rows: cells by row, from the top.
    """

    title: str
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Table:
    """Table of texts, such as an inventory.

    Attributes:
        columns: heads of the columns; empty for none.
        rows: texts by row.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Node:
    """Node of a tree.

    Attributes:
        done: True or False for a step that is reached or not; None for other nodes.
    """

    label: str
    done: bool | None = None
    children: Sequence["Node"] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Tree:
    """Tree of texts, such as a crafting plan."""

    title: str
    roots: Sequence[Node]


Drawing: TypeAlias = Grid | Table | Tree
