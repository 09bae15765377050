"""Answers that verifiers of reasoning-gym 0.1.25 may not see: they pay for constants, or run an answer as code."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping
from math import isclose
from typing import Any

NOT_FINITE = re.compile(r"\b(?:nan|inf|infinity)[ij]?\b", re.IGNORECASE)
"""Numbers whose distance to any number counts as 0, as in `complex_arithmetic`."""
LITERALS = frozenset(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"))
"""Generators whose verifiers call `eval` for an answer that may be a list."""
ARITHMETIC = frozenset(("countdown", "puzzle24"))
"""Generators whose verifiers let SymPy evaluate an answer of numbers, which runs Python."""
FORMULAS = frozenset(("intermediate_integration", "polynomial_multiplication", "simple_integration"))
"""The same for formulas."""
FUNCTION = re.compile(r"\b([A-Za-z]\w*)\s*\(")
NAMES = "abs acos acosh asin asinh atan atanh cos cosh cot csc erf exp ln log sec sin sinh sqrt tan tanh"
SIGN = re.compile(r"\*\*|\^")
POWER = re.compile(r"(?:\*\*|\^)\s*(?:-?\d{1,3}|\(-?\d{1,3}(?:/\d{1,3})?\)|[A-Za-z])(?![\w.]|\s*(?:\*\*|\^))", re.ASCII)
"""Power with a small exponent; others take minutes."""


def own_score(name: str, answer: str, entry: Mapping[str, Any]) -> float | None:
    """Return the score of an answer that the verifier of a generator may not see, or None.

    Args:
        name: name of the generator.
        entry: entry of the generator, with `answer` and `metadata`.
    """
    right = str(entry["answer"])
    if NOT_FINITE.search(answer) and not NOT_FINITE.search(right):
        return 0.0
    if not is_harmless(name, answer):
        return 0.0
    if name == "puzzle24":  # any four numbers of the range are right
        used = Counter(map(int, re.findall(r"[0-9]+", answer)))
        return None if used == Counter(map(int, entry["metadata"]["numbers"])) else 0.0
    return float(COMPARED[name](answer, right)) if name in COMPARED else None


def is_harmless(name: str, answer: str) -> bool:
    """Return True if a verifier that evaluates answers finds nothing to call in this one."""
    if name in LITERALS:
        return "(" not in answer or _is_literal(answer)
    if name in ARITHMETIC:
        return re.fullmatch(r"[-0-9+/*() \n.=]*", answer) is not None and "**" not in answer
    if name in FORMULAS:
        return (
            re.search(r"[^-\w+/*^() \n.,=]|__|\.\s*[A-Za-z_]", answer) is None
            and {found.casefold() for found in FUNCTION.findall(answer)} <= set(NAMES.split())
            and len(SIGN.findall(answer)) == len(POWER.findall(answer))
        )
    return True


def _is_literal(answer: str) -> bool:
    try:
        ast.literal_eval(answer)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _same_number(answer: str, right: str) -> bool:
    """Return True if two numbers, which may be fractions, differ by less than a thousandth."""
    try:
        parts = [one.partition("/") for one in (answer, right)]
        values = [float(above) / float(below or 1) for above, _, below in parts]
    except (ValueError, ZeroDivisionError):
        return False
    return isclose(*values, rel_tol=1e-3)


COMPARED: Mapping[str, Callable[[str, str], bool]] = {
    "coin_flip": _same_number,  # `0` is right where the first digit is
    "game_of_life_halting": lambda answer, right: answer.casefold() == right.casefold(),  # any text is right
}
"""Comparisons in the place of verifiers that pay for constants."""
