"""Quantities by which the text of an episode is colored token by token, and their scales."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from verl_agent.trace.token_files import TokenRow

SHARE = 0.98
"""Share of the values that the scale of colors covers; larger ones have the strongest color."""
GAP = "gap"
"""Name of the difference between the log-probs of trainer and engine."""
MASK = "mask"


@dataclass(frozen=True, slots=True)
class TokenView:
    """Quantity that colors tokens.

    Attributes:
        name: name in the URL: a column of token data, `MASK` or `GAP`.
        signed: True for a scale with two colors, above and below 0; False for a scale from 0 on.
    """

    name: str
    label: str
    signed: bool


VIEWS = (
    TokenView(MASK, "loss mask", signed=True),
    TokenView("advantages", "advantage", signed=True),
    TokenView("inference_logprobs", "log-prob in the engine", signed=False),
    TokenView("trainer_logprobs", "log-prob in the trainer", signed=False),
    TokenView(GAP, "trainer minus engine (log-prob)", signed=True),
    TokenView("entropy", "entropy", signed=False),
    TokenView("rollout_is_weights", "importance weight minus 1", signed=True),
    TokenView("values", "value of the critic", signed=True),
)


@dataclass(frozen=True, slots=True)
class Colored:
    """Colors of the tokens of one segment.

    Attributes:
        levels: -1 to 1 for each token, the strength of its color; None for no color.
        bound: value whose level is 1.
    """

    levels: list[float | None]
    bound: float


def values_of(row: TokenRow, name: str) -> list[float | None]:
    """Return a quantity for each token, prompt included; None for tokens without one.

    The mask is 1 for a token in the loss, -1 for one that the model wrote and that is not in the loss.
    """
    if name == MASK:
        return [
            1.0 if trained else -1.0 if turn >= 0 else None
            for trained, turn in zip(row.loss_mask, row.turns, strict=True)
        ]
    if name == GAP:
        engine, trainer = values_of(row, "inference_logprobs"), values_of(row, "trainer_logprobs")
        return [None if a is None or b is None else b - a for a, b in zip(engine, trainer, strict=True)]
    return [*[None] * row.prompt_length, *row.columns[name]]


def available(row: TokenRow) -> list[TokenView]:
    """Return the views whose quantity the row has."""
    needed = {MASK: (), GAP: ("inference_logprobs", "trainer_logprobs")}
    return [view for view in VIEWS if all(name in row.columns for name in needed.get(view.name, (view.name,)))]


def color(row: TokenRow, view: TokenView) -> Colored:
    """Return the colors of a segment; only tokens that the model wrote have one.

    A log-prob is the stronger the less likely the token was. A value that is not a number has the strongest color.
    """
    shift = 1.0 if view.name == "rollout_is_weights" else 0.0
    written = [
        None if value is None or turn < 0 else value - shift
        for value, turn in zip(values_of(row, view.name), row.turns, strict=True)
    ]
    sizes = sorted(abs(value) for value in written if value is not None and math.isfinite(value))
    bound = sizes[math.ceil(SHARE * len(sizes)) - 1] if sizes else 0.0
    bound = bound or (sizes[-1] if sizes else 0.0) or 1.0

    def level(value: float) -> float:
        if not math.isfinite(value):
            return 1.0
        scaled = max(-1.0, min(1.0, value / bound))
        return round(scaled if view.signed else abs(scaled), 3)

    return Colored([None if value is None else level(value) for value in written], bound)


def means_by_turn(row: TokenRow) -> list[dict[str, float | None]]:
    """Return a row of a table for each turn: written tokens, those in the loss, and the mean of each quantity."""
    quantities = {view.label: values_of(row, view.name) for view in available(row) if view.name != MASK}
    positions: dict[int, list[int]] = {}
    for position, turn in enumerate(row.turns):
        if turn >= 0:
            positions.setdefault(turn, []).append(position)
    return [
        {"turn": turn + 1, "tokens": len(at), "in the loss": sum(row.loss_mask[position] for position in at)}
        | {label: _mean([values[position] for position in at]) for label, values in quantities.items()}
        for turn, at in sorted(positions.items())
    ]


def _mean(values: list[float | None]) -> float | None:
    """Return the mean of the recorded values, rounded to four digits; None without one."""
    recorded = [value for value in values if value is not None]
    return float(f"{fmean(recorded):.4g}") if recorded else None


def hover_values(row: TokenRow) -> list[tuple[str, list[Any]]]:
    """Return the lines that a page shows for a token under the mouse: label, and a text or null for each token."""
    short: Callable[[float | None], str | None] = lambda value: None if value is None else f"{value:.4g}"  # noqa: E731
    lines: list[tuple[str, list[Any]]] = [
        ("id", [str(token) for token in row.token_ids]),
        ("turn", [None if turn < 0 else str(turn + 1) for turn in row.turns]),
        ("in the loss", [None if turn < 0 else str(bool(m)) for m, turn in zip(row.loss_mask, row.turns, strict=True)]),
    ]
    for view in available(row):
        if view.name != MASK:
            label = "importance weight" if view.name == "rollout_is_weights" else view.label
            lines.append((label, [short(value) for value in values_of(row, view.name)]))
    return lines


def alternatives(row: TokenRow) -> list[list[tuple[str, str]] | None]:
    """Return the most likely tokens with their probability at each token; None where none were recorded."""
    if not row.top_texts:
        return []
    log_probs = values_of(row, "top_logprobs")
    return [
        None if texts is None or at is None else [(t, f"{math.exp(p):.1%}") for t, p in zip(texts, at, strict=True)]  # type: ignore[call-overload]
        for texts, at in zip(row.top_texts, log_probs, strict=True)
    ]
