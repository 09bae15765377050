"""Page element that shows tokens side by side, colored by a quantity, with their values under the mouse."""

from collections.abc import Sequence
from typing import Any

from nicegui.element import Element

from verl_agent.trace.token_files import TokenRow
from verl_agent.viewer.token_views import Colored, alternatives, hover_values
from verl_agent.visible import make_visible


class TokenText(Element, component="token_text.js"):
    """Text of a segment. The browser gets each token as text and never as markup."""

    def __init__(self, row: TokenRow, colors: Colored) -> None:
        super().__init__()
        lines = hover_values(row)
        self._props["texts"] = [make_visible(text) for text in row.texts]
        self._props["turns"] = list(row.turns)
        self._props["labels"] = [label for label, _ in lines]
        self._props["values"] = [values for _, values in lines]
        self._props["alternatives"] = _visible(alternatives(row))
        self._props["levels"] = colors.levels

    def paint(self, colors: Colored) -> None:
        """Show other colors."""
        self._props["levels"] = colors.levels
        self.run_method("paint", colors.levels)


def _visible(every: Sequence[Any]) -> list[Any]:
    return [top and [(make_visible(text), share) for text, share in top] for top in every]
