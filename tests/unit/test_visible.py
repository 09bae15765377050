"""Texts of others: nothing in them acts, every character can be seen, and ordinary text stays as it is."""

import ast
import sys

import pytest
import regex

from tests.support.terminals import HOSTILE, acting_bytes
from verl_agent.visible import MOST_MARKS, frame, is_plain, make_visible, one_line, show_bytes

ACTS = regex.compile(r"[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]")
"""Characters that act or show nothing, by Unicode's properties in another implementation."""


def test_no_character_that_acts_or_shows_nothing_stays() -> None:
    kept = [
        code
        for code in range(sys.maxunicode + 1)
        if chr(code) not in "\n\t" and ACTS.fullmatch(chr(code)) and chr(code) in make_visible(f"a{chr(code)}")
    ]
    assert list(map(hex, kept)) == []


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_visible_text_has_no_byte_that_acts_and_is_visible_already(text: str) -> None:
    shown = make_visible(text)
    assert acting_bytes(shown.encode()) == []
    assert make_visible(shown) == shown
    assert text == shown or not is_plain(text)


@pytest.mark.parametrize(
    "text",
    [
        "two lines\n\tand a tab",
        "Grüße, 漢字, עברית, العربية, हिन्दी, ภาษาไทย ที่นี่, Việt Nam, e\u0301",
        "┌─┐ │ ✓ → ≤ 😀 ❤\ufe0f 1\ufe0f\u20e3 ⚠\ufe0f",
        "$ ls -l\n[bold]x[/] :smiley:",
    ],
)
def test_ordinary_text_of_any_script_stays(text: str) -> None:
    assert make_visible(text) == text


def test_a_flood_of_marks_is_cut_on_each_character_and_none_stands_on_ours() -> None:
    for base in ("a", "漢", " "):
        shown = make_visible(f"{base}{chr(0x301) * 500}x{chr(0x301) * MOST_MARKS}")
        assert len(shown) < 70 and regex.search(rf"\p{{M}}{{{MOST_MARKS + 1}}}", shown) is None
    assert regex.search(r"(^|\n)\p{M}", make_visible("\u0301a\n\u0301b")) is None
    assert regex.search(r"│ \p{M}", frame("\u0301a\n\u0301b")) is None


def test_a_line_has_no_second_one_and_each_line_of_a_frame_has_it() -> None:
    text = "a\nb\r\nc\u2028d\x0be\x85f\tg"
    assert len(one_line(text).splitlines()) == 1 and "\t" not in one_line(text)
    assert all(line.startswith("│ ") for line in frame(text).splitlines())
    assert len(frame(text).splitlines()) == 3


@pytest.mark.parametrize("text", [*HOSTILE.values(), "l\u0455", "ls ", "a\tb", "⟨ESC⟩", "\u241b", "ls\u00a0"])
def test_bytes_are_those_of_the_text_and_only_plain_text_needs_none(text: str) -> None:
    shown = show_bytes(text)
    assert shown.isascii() and shown.isprintable()
    assert ast.literal_eval(shown).decode("utf-8", "surrogatepass") == text
    assert is_plain(text) == (text == HOSTILE["markup"])


def test_plain_text_is_printable_ascii() -> None:
    assert is_plain("click [12]\nls -l | wc") and not is_plain("ls\n\n rm \n")
