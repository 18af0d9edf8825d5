"""A page of metrics by prometheus-client: for NameServers, controllers and proxies, whose pages have some thousand series at most.

The registry also has prometheus-client's collectors of the process (CPU time, memory, file descriptors), the interpreter and its
garbage collection. The Accept header of a request selects the Prometheus text format or OpenMetrics. A broker's page may have a
million series and is rendered by page.py (docs/decisions/0016), and so is one here of more than LINES_MAX lines: whoever reaches a
server decides how many brokers register at it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aerobee.errors import ConfigError
from aerobee.monitoring.exposition import COUNTER, Family, Histogram, Value, label_values, number_text

if TYPE_CHECKING:
    from prometheus_client import Metric


LINES_MAX = 5_000  # of our families: some 40 ms, in which the event loop does nothing else


class TooManyLines(Exception):
    """A page has more than LINES_MAX lines."""


class RegistryPage:
    """The registry of one server."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        """`families` is called for each page. Raises ConfigError when the extra `metrics` is not installed."""
        self._client = client = _load_client()
        self._families = families
        self._registry = client.CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        for collector in (client.ProcessCollector, client.PlatformCollector, client.GCCollector):
            collector(registry=self._registry)

    def content_type(self, accepted: str) -> str:
        """The format that an Accept header prefers; there are fewer than ten."""
        return self._encoder(accepted)[1]

    def render(self, accepted: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that an Accept header prefers. Raises TooManyLines."""
        encoder, content_type = self._encoder(accepted)
        return encoder(self._registry), content_type

    def _encoder(self, accepted: str) -> tuple[Callable[[Any], bytes], str]:
        chosen: tuple[Callable[[Any], bytes], str] = importlib.import_module(
            "prometheus_client.exposition"
        ).choose_encoder(accepted)
        return chosen

    def collect(self) -> Iterator[Metric]:
        """The families as prometheus-client has them; it calls this for each page. Raises TooManyLines."""
        left = LINES_MAX
        for family in self._families():
            metric = self._metric(family, left)
            left -= len(metric.samples)
            yield metric

    def _metric(self, family: Family, lines_max: int) -> Metric:
        name = family.name.removesuffix("_total") if family.kind == COUNTER else family.name
        metric: Metric = self._client.Metric(name, family.help, family.kind)
        for labels, value in family.samples:
            _add(metric, family.name, label_values(labels), value, lines_max)
        for part in family.slices:
            common = label_values(part.common)
            for labels, value in part.samples():
                _add(metric, family.name, {**common, **label_values(labels)}, value, lines_max)
        return metric


def _add(metric: Metric, name: str, labels: Mapping[str, str], value: Value, lines_max: int) -> None:
    if len(metric.samples) >= lines_max:
        raise TooManyLines
    if not isinstance(value, Histogram):
        metric.add_sample(name, dict(labels), value)
        return
    for bound, count in value.buckets:
        metric.add_sample(f"{name}_bucket", {**labels, "le": number_text(float(bound))}, count)
    metric.add_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, value.count)
    metric.add_sample(f"{name}_count", dict(labels), value.count)
    metric.add_sample(f"{name}_sum", dict(labels), value.sum)


def _load_client() -> Any:
    """prometheus-client, imported only when needed."""
    try:
        return importlib.import_module("prometheus_client")
    except ImportError as missing:
        raise ConfigError(
            "metricsExporterType=PROM needs a package that is not installed: pip install 'aerobee[metrics]'"
        ) from missing
