"""Options and numbers that benchmarks share: arguments with a range, and medians with a range."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from math import inf
from statistics import median
from typing import TypeVar

Number = TypeVar("Number", int, float)


def between(kind: type[Number], least: float, below: float = inf) -> Callable[[str], Number]:
    """Return a `type` for argparse: a finite number from `least` on, and less than `below`."""

    def read(text: str) -> Number:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not least <= number < below:
            end = "" if below == inf else f" and below {below:g}"
            kind_name = "whole number" if kind is int else "number"
            raise ArgumentTypeError(f"{text} is not allowed. Allowed: a {kind_name} of at least {least:g}{end}.")
        return number

    return read


def spread(values: Sequence[float]) -> str:
    """Return median and range of numbers."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
