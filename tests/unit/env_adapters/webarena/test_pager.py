"""Tests of the pagination of long texts: every line is shown, and a changed page keeps the position."""

from env_adapters.webarena.browser.pager import Pager

LINES = [f"line {number}" for number in range(10)]


def pager_of_lines(max_chars: int = 21) -> Pager:
    """Return a pager of `LINES`; by default a segment holds three lines of six characters and their ends."""
    pager = Pager(max_chars)
    pager.show(LINES)
    return pager


def test_turning_down_and_up_shows_every_line_once():
    pager, segments = pager_of_lines(), []
    while True:
        segments.append([line for line in pager.text.splitlines() if line.startswith("line")])
        if not pager.turn("down"):
            break
    assert [line for segment in segments for line in segment] == LINES
    assert [len(segment) for segment in segments] == [3, 3, 3, 1]
    assert pager.text.startswith("… 63 characters before are not shown.")
    assert [pager.turn("up") for _ in range(4)] == [True, True, True, False] and pager.start == 0
    assert pager.text.endswith("… 49 more characters are not shown. scroll [down] goes on there.")


def test_short_text_has_one_segment():
    pager = pager_of_lines(1000)
    assert pager.text.splitlines() == LINES and not pager.turn("down") and not pager.turn("up")


def test_line_longer_than_a_segment_is_truncated():
    pager = Pager(4)
    pager.show(["a long line", "b"])
    assert pager.text.splitlines()[0] == "a lo" and pager.turn("down") and "b" in pager.text


def test_changed_page_keeps_its_segment_and_another_page_starts_at_the_first():
    pager = pager_of_lines()
    assert pager.turn("down") and pager.start == 3
    pager.show([*LINES[:4], "line 4, changed", *LINES[5:]], keep_position=True)
    assert pager.start == 3
    pager.show(LINES[:2], keep_position=True)
    assert pager.start == 0, "the second segment no longer exists"
    pager.show(LINES)
    assert pager.turn("down")
    pager.show(LINES[::-1])
    assert pager.start == 0
