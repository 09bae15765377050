"""Rules of plain English that a test can check; CONTRIBUTING.md explains them."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

FOLDERS = ("verl_agent", "env_adapters", "tests", "examples", "recipes", "requirements", ".ci")
OPENINGS = re.compile(r"(What|Whether|How|Where|Who|Whom)\b")
"""Words with which no docstring opens: it starts with the noun or the verb."""
AVOIDED = re.compile(
    r"\b(is none|are none|of ours|mend(?:s|ed|ing)?|goes on where|what it is|how it is|the words around|"
    r"leaf(?:s|ed|ing)? through|winded|worn|at rest|made of|such as it is|cannot be meant)\b",
    re.IGNORECASE,
)
"""Phrases that made earlier texts hard to read."""


def tracked(*suffixes: str) -> list[Path]:
    """Return the files of the repository with one of the suffixes."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\n")
    files = [Path(name) for name in listed if name.endswith(suffixes)]
    return [path for path in files if (ROOT / path).is_file() and (path.parts[0] in FOLDERS or len(path.parts) == 1)]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of a Python file."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of everything in a file that people read.

    Comments and docstrings of Python files, comments of YAML and shell files, and all of Markdown.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from docstrings(path)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    else:
        for number, line in enumerate(text.splitlines(), start=1):
            yield number, line if path.suffix == ".md" else line.partition("#")[2]


@pytest.mark.parametrize("folder", ["verl_agent", "env_adapters", "tests", "examples"])
def test_docstrings_open_with_a_noun_or_a_verb(folder):
    found = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path in tracked(".py")
        if path.parts[0] == folder
        for line, text in docstrings(path)
        if OPENINGS.match(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("suffix", [".py", ".md", ".yaml", ".sh"])
def test_prose_avoids_the_phrases_that_are_hard_to_read(suffix):
    found = [
        f"{path}:{line}: {match[0]!r} in: {text.strip()[:100]}"
        for path in tracked(suffix)
        if AVOIDED.search((ROOT / path).read_text(encoding="utf-8"))
        for line, text in prose(path)
        if (match := AVOIDED.search(text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "avoided"),
    [
        ("A host that is worn is replaced.", True),
        ("How many turns an episode may have.", False),
        ("This recommends another split.", False),
        ("Bugs that are mended.", True),
    ],
)
def test_the_pattern_tells_phrases_from_ordinary_words(text, avoided):
    assert bool(AVOIDED.search(text)) is avoided
