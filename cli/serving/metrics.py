"""What ``/metrics`` tells: requests, queue, caches and times, beside the telemetry of drafts.

The names behind the colon are vLLM's where vLLM has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from selfdraft.runtime.serving.events import Finished
from selfdraft.runtime.serving.service import Service
from selfdraft.runtime.serving.snapshot import ServiceSnapshot
from selfdraft.runtime.telemetry.meter import Telemetry
from selfdraft.runtime.telemetry.prometheus import PREFIX, TelemetryCollector

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
Read = Callable[[ServiceSnapshot], float]

GAUGES: dict[str, tuple[str, Read]] = {
    "num_requests_running": ("Requests in slots.", lambda now: now.running),
    "num_requests_waiting": ("Requests in the queue.", lambda now: now.waiting),
    "kv_cache_usage_perc": (
        "Share of the slots' caches in use, 0 to 1.",
        lambda now: now.cache_use,
    ),
    "num_slots": ("Requests that can run at once.", lambda now: now.slots),
    "cache_bytes": ("Caches of all slots.", lambda now: now.state_bytes),
}
COUNTERS: dict[str, tuple[str, Read]] = {
    "prompt_tokens": ("Tokens of prompts taken in.", lambda now: now.prompt_tokens),
    "generation_tokens": ("Tokens delivered.", lambda now: now.generated_tokens),
    "prefix_cache_queries": ("Tokens of prompts looked up.", lambda now: now.prompt_tokens),
    "prefix_cache_hits": ("Of these, found in a cache.", lambda now: now.reused_tokens),
    "requests_refused": ("Requests that met a full queue.", lambda now: now.refused),
}
OTHER_PATH = "other"


class ServerMetrics:
    """Counts requests as they end; the rest is read from service and telemetry when asked for."""

    def __init__(self, service: Service, telemetry: Telemetry) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(TelemetryCollector(telemetry))
        self._registry.register(_ServiceCollector(service))
        self._waited = self._seconds("request_queue_time", "In the queue.", SECONDS)
        self._first = self._seconds("time_to_first_token", "Until the first token.", SECONDS)
        self._total = self._seconds("e2e_request_latency", "Until the last token.", SECONDS)
        self._token = self._seconds(
            "request_time_per_output_token", "Of a token behind the first.", TOKEN_SECONDS
        )
        self._responses = Counter(
            f"{PREFIX}http_responses",
            "Responses by path and status.",
            ("path", "status"),
            registry=self._registry,
        )

    def text(self) -> bytes:
        """The text exposition of now."""
        return generate_latest(self._registry)

    def note_end(self, end: Finished) -> None:
        """A request ended."""
        timing = end.timing
        self._waited.observe(timing.waited_s)
        if timing.first_token_s is not None:
            self._first.observe(timing.first_token_s)
        if end.outcome != "done" or end.result is None or timing.first_token_s is None:
            return
        self._total.observe(timing.total_s)
        count = len(end.result.tokens) - 1
        if count > 0:
            self._token.observe((timing.total_s - timing.first_token_s) / count)

    def note_response(self, path: str, status: int) -> None:
        """A response began; ``path`` is one of few."""
        self._responses.labels(path, str(status)).inc()

    def _seconds(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        full = f"{PREFIX}{name}_seconds"
        return Histogram(full, f"Seconds. {text}", buckets=buckets, registry=self._registry)


class _ServiceCollector:
    """The service's own numbers at each scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Any]:
        now = self._service.snapshot()
        for name, (text, read) in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, text, value=read(now))
        for name, (text, read) in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, text, value=read(now))
        yield _finished(now)


def _finished(now: ServiceSnapshot) -> Any:
    family = CounterMetricFamily(f"{PREFIX}requests", "Requests that ended.", labels=("outcome",))
    for outcome, count in now.finished.items():
        family.add_metric((outcome,), count)
    return family
