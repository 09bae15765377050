"""A page whose text is too long for one observation, in parts that `scroll` leafs through.

Scrolling moves a page by a viewport, and would pass over what of a viewport was not shown.
"""

from collections.abc import Sequence


class Pager:
    """Which part of a text is shown.

    Args:
        most: characters of a part.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.lines: Sequence[str] = ()
        self.starts = [0]

    def show(self, lines: Sequence[str], same: bool = False) -> None:
        """Begin with another text; of the same one, or of a page that has only changed, the same part stays.

        Args:
            lines: of the text.
            same: whether it is of the page and the place on it that were shown before.
        """
        if lines != self.lines:
            self.starts = [start for start in self.starts if start < len(lines)] if same else [0]
            self.lines = lines

    def turn(self, direction: str) -> bool:
        """Go to the next part for `down`, to the one before for `up`; False where there is none."""
        if direction == "down" and self._end < len(self.lines):
            self.starts.append(self._end)
            return True
        if direction == "up" and len(self.starts) > 1:
            self.starts.pop()
            return True
        return False

    @property
    def start(self) -> int:
        """Number of the first line that is shown."""
        return self.starts[-1]

    @property
    def text(self) -> str:
        """The part, and how much is not in it."""
        before, after = self.lines[: self.start], self.lines[self._end :]
        told = ["\n".join(self.lines[self.start : self._end])[: self.most]]
        if before:
            told.insert(0, f"… {_length(before)} characters before are not shown. scroll [up] goes back there.")
        if after:
            told.append(f"… {_length(after)} more characters are not shown. scroll [down] goes on there.")
        return "\n".join(told)

    @property
    def _end(self) -> int:
        """The line after the last that is shown, of which there is one at least."""
        end, room = self.start, self.most
        while end < len(self.lines) and (room >= len(self.lines[end]) or end == self.start):
            room -= len(self.lines[end]) + 1
            end += 1
        return end


def _length(lines: Sequence[str]) -> int:
    return sum(map(len, lines)) + len(lines)
