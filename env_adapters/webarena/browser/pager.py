"""Pagination of a page's text that does not fit into one observation; `scroll` moves between the segments.

The browser scrolls by a whole viewport and would skip the text of a viewport that was not shown.
"""

from collections.abc import Sequence


class Pager:
    """Segments of a text and the one that is shown."""

    def __init__(self, max_chars: int) -> None:
        self.max_chars = max_chars
        self.lines: Sequence[str] = ()
        self.starts = [0]

    def show(self, lines: Sequence[str], keep_position: bool = False) -> None:
        """Show a text, from its first segment unless the text is unchanged.

        Args:
            keep_position: stay at the current segment even if the text has changed, because it is the text of the
                same page at the same scroll position.
        """
        if lines != self.lines:
            self.starts = [start for start in self.starts if start < len(lines)] if keep_position else [0]
            self.lines = lines

    def turn(self, direction: str) -> bool:
        """Show the next segment for `down` or the previous one for `up`; return False if there is no such segment."""
        if direction == "down" and self._end < len(self.lines):
            self.starts.append(self._end)
            return True
        if direction == "up" and len(self.starts) > 1:
            self.starts.pop()
            return True
        return False

    @property
    def start(self) -> int:
        """Index of the first line that is shown."""
        return self.starts[-1]

    @property
    def text(self) -> str:
        """Text of the segment, with notes about the characters before and after it."""
        before, after = self.lines[: self.start], self.lines[self._end :]
        blocks = ["\n".join(self.lines[self.start : self._end])[: self.max_chars]]
        if before:
            blocks.insert(0, f"… {_length(before)} characters before are not shown. scroll [up] goes back there.")
        if after:
            blocks.append(f"… {_length(after)} more characters are not shown. scroll [down] goes on there.")
        return "\n".join(blocks)

    @property
    def _end(self) -> int:
        """Index after the last line that is shown; a segment has at least one line."""
        end, left = self.start, self.max_chars
        while end < len(self.lines) and (left >= len(self.lines[end]) or end == self.start):
            left -= len(self.lines[end]) + 1
            end += 1
        return end


def _length(lines: Sequence[str]) -> int:
    return sum(map(len, lines)) + len(lines)
