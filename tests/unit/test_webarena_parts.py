"""A long text in parts: all of it can be seen, and what changes on a page leaves the reader where he is."""

from env_adapters.webarena.browser.pager import Pager

LINES = [f"line {number}" for number in range(10)]


def parts(most: int = 21) -> Pager:
    """Three lines of six characters and their ends."""
    found = Pager(most)
    found.show(LINES)
    return found


def test_down_and_up_show_every_line_once():
    of, told = parts(), []
    while True:
        told.append([line for line in of.text.splitlines() if line.startswith("line")])
        if not of.turn("down"):
            break
    assert [line for part in told for line in part] == LINES and [len(part) for part in told] == [3, 3, 3, 1]
    assert of.text.startswith("… 63 characters before are not shown.")
    assert [of.turn("up") for _ in range(4)] == [True, True, True, False] and of.start == 0
    assert of.text.endswith("… 49 more characters are not shown. scroll [down] goes on there.")


def test_a_short_text_has_one_part():
    of = parts(1000)
    assert of.text.splitlines() == LINES and not of.turn("down") and not of.turn("up")


def test_a_line_that_is_longer_than_a_part_is_cut():
    of = Pager(4)
    of.show(["a long line", "b"])
    assert of.text.splitlines()[0] == "a lo" and of.turn("down") and "b" in of.text


def test_a_page_that_only_changes_stays_where_it_is_and_another_begins_anew():
    of = parts()
    assert of.turn("down") and of.start == 3
    of.show([*LINES[:4], "line 4, changed", *LINES[5:]], same=True)
    assert of.start == 3
    of.show(LINES[:2], same=True)
    assert of.start == 0, "there is no second part any more"
    of.show(LINES)
    assert of.turn("down")
    of.show(LINES[::-1])
    assert of.start == 0
