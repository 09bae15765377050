"""Tasks that ask to write a small program."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from env_adapters.terminal.grading import RunCheck, TerminalTask, write_command

CASES = 6


@dataclass(frozen=True)
class ToolProgram:
    """A program.

    Attributes:
        intent: what it does, after "a Python program FILE that".
        source: a solution.
        inputs: draws arguments and standard input.
        output: returns the expected output.
    """

    intent: str
    source: str
    inputs: Callable[[random.Random], tuple[list[str], str]]
    output: Callable[[list[str], str], str]


def lines(draw: random.Random) -> tuple[list[str], str]:
    """Return lines of words and no arguments."""
    return [], "".join(
        " ".join(draw.choice(("red", "Green", "blue", "x1", "Y2")) for _ in range(draw.randrange(1, 5))) + "\n"
        for _ in range(draw.randrange(2, 7))
    )


def integers(draw: random.Random) -> tuple[list[str], str]:
    """Return whole numbers, one a line, and no arguments."""
    return [], "".join(f"{draw.randrange(-500, 5000)}\n" for _ in range(draw.randrange(2, 9)))


def stdin(expression: str) -> str:
    """Return a program that prints an expression of the text `t` of its standard input."""
    return f"import sys\nt = sys.stdin.read()\nprint({expression})"


SMALL = (
    ToolProgram("reads whole numbers, one a line, and prints their sum", stdin("sum(map(int, t.split()))"), integers,
         lambda _, text: str(sum(map(int, text.split())))),
    ToolProgram("reads whole numbers, one a line, and prints the largest", stdin("max(map(int, t.split()))"), integers,
         lambda _, text: str(max(map(int, text.split())))),
    ToolProgram("reads whole numbers, one a line, and prints the largest minus the smallest",
         stdin("max(map(int, t.split())) - min(map(int, t.split()))"), integers,
         lambda _, text: str(max(map(int, text.split())) - min(map(int, text.split())))),
    ToolProgram("reads whole numbers, one a line, and prints the sum of their squares",
         stdin("sum(int(n) ** 2 for n in t.split())"), integers,
         lambda _, text: str(sum(int(one) ** 2 for one in text.split()))),
    ToolProgram("reads text and prints it in upper case", stdin("t.upper()"), lines, lambda _, text: text.upper()),
    ToolProgram("reads text and prints its lines in reverse order", stdin("'\\n'.join(t.splitlines()[::-1])"), lines,
         lambda _, text: "\n".join(text.splitlines()[::-1])),
    ToolProgram("reads text and prints its words sorted, one a line", stdin("'\\n'.join(sorted(t.split()))"), lines,
         lambda _, text: "\n".join(sorted(text.split()))),
    ToolProgram(
         "reads text and prints each line backwards", stdin("'\\n'.join(l[::-1] for l in t.splitlines())"), lines,
         lambda _, text: "\n".join(line[::-1] for line in text.splitlines())),
    ToolProgram("reads text and prints its words joined by commas", stdin("','.join(t.split())"), lines,
         lambda _, text: ",".join(text.split())),
    ToolProgram(
         "reads text and prints the first word of each line", stdin("'\\n'.join(l.split()[0] for l in t.splitlines())"),
         lines, lambda _, text: "\n".join(line.split()[0] for line in text.splitlines())),
)  # fmt: skip


def table(draw: random.Random) -> tuple[list[str], str]:
    """Return a CSV table, and a column and an operation as arguments."""
    names = draw.sample(("price", "count", "weight", "age", "score"), 3)
    rows = [[draw.randrange(1, 900) for _ in names] for _ in range(draw.randrange(3, 9))]
    text = "\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n"
    return [draw.choice(names), draw.choice(("sum", "max", "min"))], text


def column(arguments: list[str], text: str) -> str:
    """Return an operation over a column."""
    header, *rows = [line.split(",") for line in text.splitlines()]
    values = [int(row[header.index(arguments[0])]) for row in rows]
    return str(sum(values) if arguments[1] == "sum" else max(values) if arguments[1] == "max" else min(values))


def text_and_number(draw: random.Random) -> tuple[list[str], str]:
    """Return text, and a number as argument."""
    return [str(draw.randrange(1, 4))], lines(draw)[1]


def most_frequent(arguments: list[str], text: str) -> str:
    """Return the most frequent words with their counts."""
    words = text.lower().split()
    ranked = sorted(set(words), key=lambda word: (-words.count(word), word))[: int(arguments[0])]
    return "\n".join(f"{word} {words.count(word)}" for word in ranked)


def caesar(arguments: list[str], text: str) -> str:
    """Return text with each letter moved in the alphabet."""
    step = int(arguments[0])
    moved = [
        chr((ord(one) - base + step) % 26 + base)
        if one.isalpha() and (base := ord("A" if one.isupper() else "a"))
        else one
        for one in text
    ]
    return "".join(moved)


MEDIUM = (
    ToolProgram(
         "takes the name of a column and `sum`, `max` or `min` as arguments, reads a CSV table of whole numbers with a "
         "header, and prints that value of the column",
         "import csv, sys\nrows = list(csv.DictReader(sys.stdin))\nvalues = [int(row[sys.argv[1]]) for row in rows]\n"
         "print({'sum': sum, 'max': max, 'min': min}[sys.argv[2]](values))", table, column),
    ToolProgram(
         "takes a number N as argument, reads text, and prints the N most frequent words in lower case with their "
         "counts, as `word count`, the most frequent first and equal ones in alphabetical order",
         "import sys\nwords = sys.stdin.read().lower().split()\n"
         "ranked = sorted(set(words), key=lambda w: (-words.count(w), w))[:int(sys.argv[1])]\n"
         "print('\\n'.join(f'{w} {words.count(w)}' for w in ranked))", text_and_number, most_frequent),
    ToolProgram(
         "takes a number N as argument, reads text, and prints it with each letter moved by N places in the alphabet "
         "(z is followed by a); upper and lower case and other characters stay",
         "import sys\nfrom string import ascii_lowercase as low, ascii_uppercase as up\nn = int(sys.argv[1])\n"
         "print(sys.stdin.read().translate(str.maketrans(low + up, low[n:] + low[:n] + up[n:] + up[:n])), end='')",
         text_and_number, caesar),
)  # fmt: skip


def expression(draw: random.Random) -> tuple[list[str], str]:
    """Return arithmetic expressions, one a line."""

    def part(depth: int) -> str:
        if depth == 0 or draw.random() < 0.3:
            return str(draw.randrange(1, 20))
        both = f"{part(depth - 1)} {draw.choice('+-*')} {part(depth - 1)}"
        return f"({both})" if draw.random() < 0.5 else both

    return [], "".join(f"{part(3)}\n" for _ in range(5))


def stock_commands(draw: random.Random) -> tuple[list[str], str]:
    """Return commands of a stock, one a line."""
    items, commands = ("nut", "bolt", "gear"), []
    for _ in range(draw.randrange(6, 14)):
        verb = draw.choice(("add", "add", "take", "show"))
        commands.append(f"{verb} {draw.choice(items)}" + (f" {draw.randrange(1, 9)}" if verb != "show" else ""))
    return [], "\n".join([*commands, "list"]) + "\n"


def stock_output(_: list[str], text: str) -> str:
    """Return the answers to commands of a stock."""
    held: dict[str, int] = {}
    said = []
    for verb, *rest in map(str.split, text.splitlines()):
        if verb == "add":
            held[rest[0]] = held.get(rest[0], 0) + int(rest[1])
        elif verb == "take" and held.get(rest[0], 0) < int(rest[1]):
            said.append(f"not enough {rest[0]}")
        elif verb == "take":
            held[rest[0]] -= int(rest[1])
        elif verb == "show":
            said.append(str(held.get(rest[0], 0)))
        else:
            said += [f"{name} {held[name]}" for name in sorted(held) if held[name]]
    return "\n".join(said)


def graph(draw: random.Random) -> tuple[list[str], str]:
    """Return edges of a graph with lengths, and two nodes as arguments."""
    nodes = "abcdefg"
    edges = [f"{nodes[i]} {nodes[draw.randrange(i)]} {draw.randrange(1, 20)}" for i in range(1, 6)]
    edges += [f"{one} {other} {draw.randrange(1, 20)}" for one, other in (draw.sample(nodes[:6], 2) for _ in range(5))]
    return draw.sample(nodes, 2), "\n".join(edges) + "\n"


def shortest(arguments: list[str], text: str) -> str:
    """Return the length of the shortest path, or `none`."""
    far = {arguments[0]: 0}
    edges = [line.split() for line in text.splitlines()]
    for _ in range(len(edges)):
        for a, b, length in [*edges, *([b, a, length] for a, b, length in edges)]:
            if a in far and far[a] + int(length) < far.get(b, 10**9):
                far[b] = far[a] + int(length)
    return str(far.get(arguments[1], "none"))


SHORTEST = """
import sys
far, edges = {sys.argv[1]: 0}, []
for line in sys.stdin:
    a, b, n = line.split()
    edges += [(a, b, int(n)), (b, a, int(n))]
for _ in edges:
    for a, b, n in edges:
        if a in far and far[a] + n < far.get(b, 10**9):
            far[b] = far[a] + n
print(far.get(sys.argv[2], 'none'))
""".strip()
STOCK = """
import sys
held = {}
for line in sys.stdin:
    verb, *rest = line.split()
    if verb == 'add':
        held[rest[0]] = held.get(rest[0], 0) + int(rest[1])
    elif verb == 'take':
        if held.get(rest[0], 0) < int(rest[1]):
            print('not enough', rest[0])
        else:
            held[rest[0]] -= int(rest[1])
    elif verb == 'show':
        print(held.get(rest[0], 0))
    else:
        for name in sorted(held):
            if held[name]:
                print(name, held[name])
""".strip()
LARGE = (
    ToolProgram(
         "reads arithmetic expressions of whole numbers, + - * and parentheses, one a line, and prints the value of "
         "each",
         "import sys\nfor line in sys.stdin:\n    print(eval(line))", expression,
         lambda _, text: "\n".join(str(eval(line)) for line in text.splitlines())),
    ToolProgram(
         "keeps a stock and reads commands, one a line: `add ITEM N`; `take ITEM N`, which prints `not enough ITEM` "
         "and changes nothing if there are fewer; `show ITEM`, which prints the number; `list`, which prints "
         "`ITEM N` for all items of which there are some, sorted by name", STOCK, stock_commands, stock_output),
    ToolProgram(
         "reads the edges of an undirected graph, one a line as `node node length`, takes two nodes as arguments, and "
         "prints the length of the shortest path between them, or `none`", SHORTEST, graph, shortest),
)  # fmt: skip


def make(size: str, number: int, held_out: bool, draw: random.Random) -> TerminalTask:
    """Return a task; the last fifth of the programs, at least one, is for held-out tasks alone."""
    tools = {"small": SMALL, "medium": MEDIUM, "large": LARGE}[size]
    apart = max(1, len(tools) // 5)
    pool = tools[-apart:] if held_out else tools[:-apart]
    order = number // 5 if held_out else number - number // 5  # number within the split
    tool, file = pool[order % len(pool)], f"{draw.choice(('tool', 'run', 'calc', 'prog'))}{number}.py"
    checks, shown = [], ""
    for case in range(CASES + 1):
        arguments, text = tool.inputs(draw)
        output = tool.output(arguments, text)
        if case == 0:
            shown = f"With the arguments {json.dumps(arguments)} and the" if arguments else "With the"
            shown += f" input {json.dumps(text)} it prints {json.dumps(output)}."
        else:
            checks.append(RunCheck(("python3", "-I", file, *arguments), text, output))
    return TerminalTask(
        f"Write a Python program {file} that {tool.intent}. {shown}",
        {},
        (write_command(file, tool.source),),
        tuple(checks),
    )


def outputs(task: TerminalTask) -> list[Any]:
    """Return the expected outputs of a task, for tests."""
    return [check.expected for check in task.checks if isinstance(check, RunCheck)]
