"""Metrics of a server in the text format of Prometheus."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

MEDIA_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""Upper bounds of the histogram's buckets."""


class Gauges(Collector):
    """Gauges of the server's state at the time of each scrape."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield one gauge for each value."""
        for name, value in self._read().items():
            yield GaugeMetricFamily(f"verl_agent_{name}", f"{name} of the server, as in /stats", value=value)


class Metrics:
    """Counters, durations and gauges of one server, in a registry of their own."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Gauges(read))
        self._requests = Counter(
            "verl_agent_requests", "Requests by call and status", ["call", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "verl_agent_request_seconds", "Seconds by call", ["call"], registry=self._registry, buckets=SECONDS
        )

    def count(self, call: str, status: str, seconds: float) -> None:
        """Count one request; `status` is that of HTTP, or `OK` or the code of an error in a session."""
        self._requests.labels(call, status).inc()
        self._seconds.labels(call).observe(seconds)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)
