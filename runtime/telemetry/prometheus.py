"""Counters as Prometheus text, by the ``prometheus-client`` library (extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from selfdraft.baseline import bucket_label
from selfdraft.errors import ConfigError
from selfdraft.runtime.telemetry.counts import Histogram, Key, StepCounts, sum_histograms
from selfdraft.runtime.telemetry.meter import Telemetry

PREFIX = "selfdraft:"
SPEC = f"{PREFIX}spec_decode_"
"""The rest of these names is vLLM's."""
LABELS = ("task", "position_bucket", "drafts", "mode")
STEP_COUNTERS = {
    f"{PREFIX}decode_steps": "Decode steps of single slots.",
    f"{PREFIX}decode_tokens": "Tokens that decode steps drew.",
    f"{SPEC}num_drafts": "Steps that drafted.",
    f"{SPEC}num_draft_tokens": "Drafted tokens.",
    f"{SPEC}num_accepted_tokens": "Accepted drafts.",
}
POSITION_COUNTERS = {
    f"{SPEC}num_draft_tokens_per_pos": "Drafted tokens at each draft position.",
    f"{SPEC}num_accepted_tokens_per_pos": "Steps that accepted this draft and all before it.",
}
THINKING_COUNTERS = {
    f"{PREFIX}thinking_replies": "Replies with a thinking budget.",
    f"{PREFIX}thinking_budget_triggered": "Replies whose thinking the budget ended.",
    f"{PREFIX}thinking_budget_violated": "Replies that thought longer than allowed.",
}


def prometheus_text(telemetry: Telemetry) -> bytes:
    """The text exposition of everything counted since the start, and of the alerts that stand.

    Raises ``ConfigError`` without the library.
    """
    client = prometheus_client()
    registry = client.CollectorRegistry()
    registry.register(TelemetryCollector(telemetry))
    text: bytes = client.generate_latest(registry)
    return text


def prometheus_client() -> Any:
    """The library. Raises ``ConfigError`` where it is not installed."""
    try:
        import prometheus_client as client
    except ImportError:
        raise ConfigError(
            "Prometheus text needs the package prometheus-client",
            hint="pip install 'selfdraft[metrics]', or give --telemetry a file that does not end in .prom",
        ) from None
    return client


class TelemetryCollector:
    """What the library asks for metrics at each scrape; for a registry that holds others too."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterator[Any]:
        """Everything counted since the start, as the library's families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counters = {
            name: CounterMetricFamily(name, text, labels=LABELS)
            for name, text in STEP_COUNTERS.items()
        }
        positions = {
            name: CounterMetricFamily(name, text, labels=(*LABELS, "position"))
            for name, text in POSITION_COUNTERS.items()
        }
        for labels, parts in _by_labels(self._telemetry.totals).items():
            _add_steps(counters, positions, labels, sum_histograms(parts))
        yield from counters.values()
        yield from positions.values()
        yield from self._thinking()
        alerts = GaugeMetricFamily(
            f"{PREFIX}alert", "1 while an alert stands.", labels=("kind", "scope")
        )
        for alert in self._telemetry.snapshot().alerts:
            alerts.add_metric((alert.kind, alert.scope), 1)
        yield alerts

    def _thinking(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        totals = list(self._telemetry.thinking_totals.items())
        for index, (name, text) in enumerate(THINKING_COUNTERS.items()):
            family = CounterMetricFamily(name, text, labels=("task", "budget"))
            for (task, budget), counts in totals:
                family.add_metric((task, str(budget)), counts[index])
            yield family


def _by_labels(totals: Mapping[Key, Histogram]) -> dict[tuple[str, ...], list[Histogram]]:
    """Temperatures are no label: kinds of steps that differ in nothing else are one series."""
    found: dict[tuple[str, ...], list[Histogram]] = {}
    for key, histogram in list(totals.items()):
        labels = (key.labels.task, bucket_label(key.bucket), str(key.drafts), key.labels.mode)
        found.setdefault(labels, []).append(histogram)
    return found


def _add_steps(
    counters: dict[str, Any],
    positions: dict[str, Any],
    labels: tuple[str, ...],
    found: StepCounts,
) -> None:
    drafted, accepted = found.counts.drafted, found.counts.accepted
    values = (found.steps, found.tokens, found.drafts, sum(drafted), sum(accepted))
    for family, value in zip(counters.values(), values, strict=True):
        family.add_metric(labels, value)
    for family, by_position in zip(positions.values(), (drafted, accepted), strict=True):
        for place, value in enumerate(by_position):
            family.add_metric((*labels, str(place)), value)
