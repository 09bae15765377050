"""Cost of a reply, from the recipe's prices or the package genai-prices, and budget of an evaluation."""

import asyncio
import importlib.util
import math

from verl_agent.envs.model_api.settings import ApiSettings, Prices
from verl_agent.errors import ConfigError
from verl_agent.types import Usage

MILLION = 1_000_000


class PriceList:
    """Prices of one model."""

    def __init__(self, settings: ApiSettings) -> None:
        self._own: Prices = settings.prices
        self._name, self._url = settings.name or "", settings.url
        self.known = self.cost(Usage(input_tokens=1, output_tokens=1)) is not None
        """True if the model has prices."""

    def cost(self, usage: Usage) -> float | None:
        """Return the price of a reply in US dollars; None if its tokens or the prices are unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        if self._own.input is None or self._own.output is None:
            return self._listed(usage.input_tokens, cached, written, usage.output_tokens)
        cached_price = self._own.input if self._own.cached_input is None else self._own.cached_input
        write_price = self._own.input if self._own.cache_write is None else self._own.cache_write
        fresh = max(0, usage.input_tokens - cached - written)
        total = fresh * self._own.input + cached * cached_price + written * write_price
        return (total + usage.output_tokens * self._own.output) / MILLION

    def most(self, input_tokens: int, output_tokens: int) -> float:
        """Return the highest price of a reply with at most these tokens; 0 if the prices are unknown."""
        costs = (
            self.cost(Usage(input_tokens=input_tokens, cache_write_tokens=written, output_tokens=output_tokens))
            for written in (0, input_tokens)  # some vendors charge more for tokens that they write to their cache
        )
        return max(cost or 0.0 for cost in costs)

    def _listed(self, input_tokens: int, cached: int, written: int, output_tokens: int) -> float | None:
        """Return a price by the list of genai-prices; None if it does not have the server or the model."""
        if importlib.util.find_spec("genai_prices") is None:
            return None
        from genai_prices import Usage as ListedUsage
        from genai_prices import calc_price

        usage = ListedUsage(
            input_tokens=input_tokens,
            cache_read_tokens=min(cached, input_tokens),
            cache_write_tokens=min(written, max(0, input_tokens - cached)),
            output_tokens=output_tokens,
        )
        try:
            total = float(calc_price(usage, self._name, provider_api_url=self._url).total_price)
        except (LookupError, ValueError):
            return None
        return total if math.isfinite(total) else None


class Budget:
    """Spending limit that concurrent requests share.

    A request reserves the most that it may cost, and settles it with what it did cost. A request that does not fit
    waits until others have settled.
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
        """Replace a reservation by the cost."""
        self.spent_usd += usd
        self._reserved_usd -= reserved_usd
        self._in_flight -= 1
        async with self._settled:
            self._settled.notify_all()


def check_prices(settings: ApiSettings, max_usd: float | None) -> None:
    """Check that a limit on the cost can be kept.

    Raises:
        ConfigError: the budget needs prices that are unknown.
    """
    if max_usd is not None and not PriceList(settings).known:
        installed = importlib.util.find_spec("genai_prices") is not None
        reason = f"does not list {settings.name!r} of {settings.url}" if installed else "is not installed"
        raise ConfigError(
            f"evaluation.max_usd={max_usd:g} needs the prices of the model, and the package genai-prices {reason}. Set "
            "model.api.prices.input and model.api.prices.output in US dollars per million tokens, or leave max_usd out."
        )
