"""Budget of an evaluation in US dollars: what is spent, and what requests in flight may still cost."""

import asyncio

from verl_agent.errors import ConfigError


class Budget:
    """Spending limit that concurrent requests share.

    A request reserves the most that it may cost, and settles it with what it did cost. A request that does not fit
    waits until others have settled.

    Args:
        max_usd: most US dollars to spend; None for no limit.
        spent_usd: US dollars that earlier starts spent.
    """

    def __init__(self, max_usd: float | None, spent_usd: float = 0.0) -> None:
        self.max_usd, self.spent_usd = max_usd, spent_usd
        self._reserved_usd, self._in_flight = 0.0, 0
        self._settled = asyncio.Condition()

    async def reserve(self, usd: float) -> None:
        """Reserve the most that a request may cost; wait for others if that does not fit now.

        Raises:
            ConfigError: it does not fit, and no other request is in flight.
        """
        async with self._settled:
            while self.max_usd is not None and self.spent_usd + self._reserved_usd + usd > self.max_usd:
                if not self._in_flight:
                    raise ConfigError(self._refusal(self.max_usd, usd))
                await self._settled.wait()
            self._reserved_usd += usd
            self._in_flight += 1

    def _refusal(self, max_usd: float, usd: float) -> str:
        if usd > max_usd:
            return (
                f"evaluation.max_usd={max_usd:g} is too low for the next request, which may cost {usd:.4f} USD; "
                f"{self.spent_usd:.4f} USD are spent. Raise it, or lower model.api.max_output_tokens."
            )
        return (
            f"evaluation.max_usd={max_usd:g} is reached: {self.spent_usd:.4f} USD are spent, and the next request may "
            f"cost {usd:.4f} USD. Raise it to play the pending episodes."
        )

    async def settle(self, reserved_usd: float, usd: float) -> None:
        """Replace a reservation by the cost.

        Args:
            reserved_usd: argument of `reserve`.
            usd: cost; what was reserved, if it is not known.
        """
        self.spent_usd += usd
        self._reserved_usd -= reserved_usd
        self._in_flight -= 1
        async with self._settled:
            self._settled.notify_all()
