"""Test that texts of others are shown by Markdown as they are."""

import json
import random

import pytest
from markdown_it import MarkdownIt

from verl_agent.results.report_files import escaped, markdown_table, write_report

TEXTS = [
    *("a|b", "*bold*", "`code`", "<img src=x onerror=alert(1)>", "<!-- hidden -->", "[a](javascript:alert(1))"),
    *("__init__", "snake_case", "~~gone~~", "&lt;", "&#38;", "a\\", "\\|", "\\*", "![a](b.png)", "[a]: b", "[a][b]"),
    *("depth 2", "0.5 [0.3, 0.7]", "12 (3 of 4)", "click [7]", "a\nb | c\r\nd"),
]


def shown(cell: str) -> tuple[list[str], set[str]]:
    """Return the texts of the cells of a table with one row, and the kinds of their inline parts."""
    tokens = (
        MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse("\n".join(markdown_table(["a"], [[cell]])))
    )
    inline = [token for token in tokens if token.type == "inline"]
    parts = [part for token in inline for part in token.children]
    return ["".join(part.content for part in token.children) for token in inline], {part.type for part in parts}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_a_table_is_shown_as_it_is(text):
    assert shown(text) == (["a", " ".join(text.splitlines())], {"text"})


def test_random_texts_in_a_table_are_shown_as_they_are():
    luck = random.Random(0)
    for _ in range(2_000):
        text = "a" + "".join(luck.choices("ab \\`*_{}[]()<>#+-.!|~&;:\"'$1", k=luck.randint(0, 8))).rstrip()
        assert shown(text) == (["a", text], {"text"}), text


def test_ordinary_texts_are_not_changed():
    texts = ["find-animal 3", "0.5 [0.3, 0.7]", "12 (3 of 4)", "get 1 oak_log", "a & b", "5 - 3 = 2", "C:\\dir"]
    assert [escaped(text) for text in texts] == texts


def test_characters_that_act_or_cannot_be_written_are_visible_in_a_report(tmp_path):
    odd = "go \ud800 \x1b[2J"
    files = write_report(tmp_path, "failures", 1, {"action": odd}, "\n".join(markdown_table(["a"], [[odd]])))
    assert [file.name for file in files] == ["failures.json", "failures.md"]
    assert "| go \ufffd \u241b[2J |\n" in files[1].read_text(encoding="utf-8")
    assert json.loads(files[0].read_text())["action"] == odd
