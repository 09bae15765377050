"""Cost of a reply, from the recipe's prices or from the package genai-prices."""

import importlib.util
import math

from verl_agent.evaluation.api.settings import ApiSettings, Prices
from verl_agent.types import Usage

MILLION = 1_000_000


class PriceList:
    """Prices of one model.

    Args:
        settings: section `model.api`.
    """

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
