"""Tokens and cost of recorded turns and episodes; None where they are unknown."""

from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.turn_record import TurnRecord


def turn_tokens(turn: TurnRecord) -> int | None:
    """Return the tokens that the policy generated for a turn; None if the server of its model did not count them."""
    uncounted = "usage" in turn and turn["usage"]["output_tokens"] is None
    return None if uncounted and not turn["tokens"] else turn["tokens"]


PLAIN_FINISHES = ("", "stop", "tool_calls", "function_call", "end_turn", "tool_use", "stop_sequence")
"""Finish reasons of APIs that say no more than that the model has ended its reply."""


def turn_finish(turn: TurnRecord) -> str:
    """Return the finish reason of an API if it explains the reply, such as `refusal` or `content_filter`, or ""."""
    finish = turn["usage"].get("finish", "") if "usage" in turn else ""
    return "" if finish in PLAIN_FINISHES else finish


def turn_cost(turn: TurnRecord) -> float | None:
    """Return the cost of a turn in US dollars; None if its tokens or the prices are unknown."""
    return turn["usage"]["cost_usd"] if "usage" in turn else None


def episode_tokens(record: EpisodeRecord) -> int | None:
    """Return the generated tokens of an episode; None if those of a turn are unknown."""
    tokens = [turn_tokens(turn) for turn in record["turns"]]
    known = [count for count in tokens if count is not None]
    return sum(known) if len(known) == len(tokens) else None


def episode_cost(record: EpisodeRecord) -> float | None:
    """Return the cost of an episode in US dollars; None if that of a turn is unknown, or without a turn."""
    costs = [turn_cost(turn) for turn in record["turns"]]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if costs and len(known) == len(costs) else None
