"""Tasks that ask to repair Python functions."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from env_adapters.terminal.grading import TerminalTask, calls

CASES = 24


@dataclass(frozen=True)
class Function:
    """A function and its possible mistakes.

    Attributes:
        name: name of the function.
        intent: what it returns.
        source: right source.
        mistakes: right and wrong text; each pair occurs once in the source.
        arguments: draws the arguments of a call.
    """

    name: str
    intent: str
    source: str
    mistakes: tuple[tuple[str, str], ...]
    arguments: Callable[[random.Random], list[Any]]


def some_numbers(draw: random.Random, least: int = 0) -> list[int]:
    """Return some whole numbers."""
    return [draw.randrange(-20, 60) for _ in range(draw.randrange(least, 9))]


def some_words(draw: random.Random) -> str:
    """Return some words."""
    return " ".join(
        draw.choice(("kayak", "stone", "level", "tree", "Oslo", "a", "bee")) for _ in range(draw.randrange(6))
    )


def spans(draw: random.Random) -> list[list[int]]:
    """Return some intervals."""
    begins = [draw.randrange(30) for _ in range(draw.randrange(7))]
    return [[begin, begin + draw.randrange(1, 8)] for begin in begins]


FUNCTIONS = (
    Function(
        "total",
        "the sum of the numbers above zero",
        "def total(numbers):\n    result = 0\n    for one in numbers:\n        if one > 0:\n            result += one\n"
        "    return result\n",
        (("result = 0", "result = 1"), ("one > 0", "one < 0"), ("result += one", "result = one")),
        lambda draw: [some_numbers(draw)],
    ),
    Function(
        "mean",
        "the mean of the numbers, or 0 without numbers",
        "def mean(numbers):\n    if not numbers:\n        return 0\n    return sum(numbers) / len(numbers)\n",
        (("return 0", "return 1"), ("/ len(numbers)", "// len(numbers)"), ("sum(numbers)", "max(numbers)")),
        lambda draw: [some_numbers(draw)],
    ),
    Function(
        "largest",
        "the `count` largest numbers, the largest first",
        "def largest(numbers, count):\n    ordered = sorted(numbers, reverse=True)\n    return ordered[:count]\n",
        (("reverse=True", "reverse=False"), ("[:count]", "[count:]")),
        lambda draw: [some_numbers(draw), draw.randrange(5)],
    ),
    Function(
        "initials",
        "the first letters of the words in upper case, joined by dots",
        "def initials(text):\n    letters = [word[0].upper() for word in text.split()]\n    return '.'.join(letters)\n",
        (("word[0]", "word[-1]"), (".upper()", ".lower()"), ("'.'.join", "''.join")),
        lambda draw: [some_words(draw)],
    ),
    Function(
        "palindromes",
        "the number of words that read the same in both directions",
        "def palindromes(text):\n    return sum(1 for word in text.split() if word == word[::-1])\n",
        (("word == word", "word != word"), ("sum(1 for", "sum(2 for")),
        lambda draw: [some_words(draw)],
    ),
    Function(
        "running",
        "the list of sums of the first one, two, ... numbers",
        "def running(numbers):\n    sums, so_far = [], 0\n    for one in numbers:\n        so_far += one\n"
        "        sums.append(so_far)\n    return sums\n",
        (
            ("so_far += one", "so_far -= one"),
            ("sums.append(so_far)", "sums.append(one)"),
            ("return sums", "return so_far"),
        ),
        lambda draw: [some_numbers(draw)],
    ),
    Function(
        "merge",
        "the union of intervals [begin, end] as sorted intervals; intervals that touch become one",
        "def merge(intervals):\n    merged = []\n    for begin, end in sorted(intervals):\n"
        "        if merged and begin <= merged[-1][1]:\n            merged[-1][1] = max(merged[-1][1], end)\n"
        "        else:\n            merged.append([begin, end])\n    return merged\n",
        (
            ("begin <= merged", "begin < merged"),
            ("max(merged[-1][1], end)", "min(merged[-1][1], end)"),
            ("in sorted(intervals)", "in intervals"),
        ),
        lambda draw: [spans(draw)],
    ),
    Function(
        "binary_search",
        "the index of `wanted` in a sorted list without repeated numbers, or -1",
        "def binary_search(numbers, wanted):\n    low, high = 0, len(numbers) - 1\n    while low <= high:\n"
        "        middle = (low + high) // 2\n        if numbers[middle] == wanted:\n            return middle\n"
        "        if numbers[middle] < wanted:\n            low = middle + 1\n        else:\n"
        "            high = middle - 1\n    return -1\n",
        (
            ("low <= high", "low < high"),
            ("return -1", "return 0"),
            ("numbers[middle] < wanted", "numbers[middle] > wanted"),
        ),
        lambda draw: [ordered := sorted(set(some_numbers(draw, 1))), draw.choice([*ordered, 60])],
    ),
    Function(
        "encode",
        "run lengths of a text, as [letter, count] in order",
        "def encode(text):\n    runs = []\n    for letter in text:\n        if runs and runs[-1][0] == letter:\n"
        "            runs[-1][1] += 1\n        else:\n            runs.append([letter, 1])\n    return runs\n",
        (("runs[-1][1] += 1", "runs[-1][1] += 2"), ("[letter, 1]", "[letter, 0]"), ("runs[-1][0]", "runs[0][0]")),
        lambda draw: ["".join(draw.choice("aab") for _ in range(draw.randrange(9)))],
    ),
    Function(
        "transpose",
        "the rows of a table as columns",
        "def transpose(rows):\n    if not rows:\n        return []\n"
        "    return [[row[index] for row in rows] for index in range(len(rows[0]))]\n",
        (("len(rows[0])", "len(rows)"), ("row[index] for", "row[0] for"), ("return []", "return None")),
        lambda draw: [[[draw.randrange(9) for _ in range(3)] for _ in range(draw.choice((0, 2, 4, 5)))]],
    ),
    Function(
        "roman",
        "a number from 1 to 3999 as a Roman numeral",
        "def roman(number):\n    values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]\n"
        "    signs = 'M CM D CD C XC L XL X IX V IV I'.split()\n    text = ''\n"
        "    for value, sign in zip(values, signs):\n        while number >= value:\n            text += sign\n"
        "            number -= value\n    return text\n",
        (("number >= value", "number > value"), ("XC L XL", "XC XL L"), ("number -= value", "number = number % value")),
        lambda draw: [draw.randrange(1, 4000)],
    ),
    Function(
        "digits",
        "the digital root: the sum of the decimal digits, again until one digit is left",
        "def digits(number):\n    while number > 9:\n        number = sum(int(one) for one in str(number))\n"
        "    return number\n",
        (("number > 9", "number > 10"), ("sum(int(one)", "max(int(one)")),
        lambda draw: [draw.randrange(10**6)],
    ),
)


HELD_OUT = ("initials", "running", "encode", "digits")
"""Functions of the held-out tasks alone."""


def make(size: str, number: int, held_out: bool, draw: random.Random) -> TerminalTask:
    """Return a task: one mistake, two in functions of one file, or three in two files."""
    count = {"small": 1, "medium": 2, "large": 3}[size]
    pool = [one for one in FUNCTIONS if (one.name in HELD_OUT) == held_out]
    order = number // 5 if held_out else number - number // 5  # number within the split
    chosen = [pool[(order + 3 * step) % len(pool)] for step in range(count)]
    files = ["lib.py"] * count if count < 3 else ["lib.py", "lib.py", "more.py"]
    sources: dict[str, str] = {}
    commands, checks = [], []
    for place, (function, file) in enumerate(zip(chosen, files, strict=True)):
        right, wrong = function.mistakes[(order // len(pool) + place) % len(function.mistakes)]
        assert function.source.count(right) == 1, (function.name, right)
        broken = function.source.replace(right, wrong)
        cases = [function.arguments(draw) for _ in range(CASES)]
        values, faulty = results(function.name, function.source, cases), results(function.name, broken, cases)
        assert values != faulty, (function.name, wrong)
        checks.append(calls(file, function.name, cases, values))
        head = f'    """Return {function.intent}."""\n'
        begin, _, body = broken.partition("\n")
        sources[file] = sources.get(file, "") + f"{begin}\n{head}{body}\n\n"
        commands.append((file, wrong, right, begin))
    solution = [f"cat {' '.join(sorted(sources))}"]
    for file, wrong, right, begin in commands:
        edit = f"p = {file!r}; t = open(p).read(); i = t.index({begin!r}); "
        edit += f"open(p, 'w').write(t[:i] + t[i:].replace({wrong!r}, {right!r}, 1))"
        solution.append(f"python3 -c {json.dumps(edit)}")
    where = " and ".join(f"`{function.name}` in {file}" for function, file in zip(chosen, files, strict=True))
    words = "It has a mistake" if count == 1 else "Each has a mistake"
    return TerminalTask(
        f"Repair {where}. {words}; the docstring says what the function returns.", sources, solution, tuple(checks)
    )


def results(name: str, source: str, cases: list[list[Any]]) -> list[Any]:
    """Return the results of a function of this module."""
    space: dict[str, Any] = {}
    exec(source, space)  # our own source

    def call(arguments: list[Any]) -> Any:
        try:
            return json.loads(json.dumps(space[name](*json.loads(json.dumps(arguments)))))
        except Exception as error:  # a broken function may raise anything
            return {"raised": type(error).__name__}

    return [call(one) for one in cases]
