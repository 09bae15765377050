"""Requests to a model behind an API while an evaluation plays: answers, retries, waits, usage."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from verl_agent.types import Usage
from verl_agent.visible import one_line

REPORT_S = 10.0
"""Seconds between two reports of requests that wait."""
MOST_CHARS = 120
"""Characters of the reason for a retry."""


@dataclass(slots=True)
class Traffic:
    """Counters of the requests since the start of an evaluation.

    Attributes:
        report: called with a sentence when requests wait, at most every `REPORT_S` seconds.
        waiting: number of requests that wait before a retry, or because the server asked to wait.
        retried: number of retries by the reason of the failure.
        stops: number of replies by the reason for which the server ended them.
    """

    report: Callable[[str], object] = print
    answered: int = 0
    waiting: int = 0
    retried: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    _reported_at: float = -REPORT_S

    def answer(self, usage: Usage) -> None:
        """Count a reply."""
        self.answered += 1
        self.stops[one_line(usage.finish) or "not given"] += 1
        self.input_tokens += usage.input_tokens or 0
        self.output_tokens += usage.output_tokens or 0
        self.cost_usd += usage.cost_usd or 0.0

    async def wait(self, seconds: float, reason: str = "") -> None:
        """Wait before a request is sent.

        Args:
            reason: failure after which the request is sent again; "" for a request that waits with others.
        """
        if seconds <= 0:
            return
        if reason:
            self.retried[one_line(reason)[:MOST_CHARS]] += 1
        self.waiting += 1
        now = asyncio.get_running_loop().time()
        if reason and now - self._reported_at >= REPORT_S:
            self._reported_at = now
            again = f"the next is sent in {seconds:.0f} s" if seconds >= 1 else "the next is sent at once"
            waiting = "1 request waits" if self.waiting == 1 else f"{self.waiting} requests wait"
            self.report(f"{waiting}, {again}. The model's server: {one_line(reason)[:MOST_CHARS]}")
        try:
            await asyncio.sleep(seconds)
        finally:
            self.waiting -= 1

    def describe(self) -> dict[str, Any]:
        """Return the counters as JSON values."""
        return {
            "answered": self.answered,
            "waiting": self.waiting,
            "retried": dict(self.retried),
            "stops": dict(self.stops),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": self.cost_usd,
        }
