"""A page of metrics by prometheus-client: for NameServers, controllers and proxies, whose pages have some thousand series at most.

The registry also has prometheus-client's collectors of the process (CPU time, memory, file descriptors), the interpreter and its
garbage collection. The Accept header of a request selects the Prometheus text format or OpenMetrics. A broker's page may have a
million series and is rendered by page.py (docs/decisions/0016).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aerobee.errors import ConfigError
from aerobee.monitoring.exposition import COUNTER, Family, Histogram, Value, label_values, number_text

if TYPE_CHECKING:
    from prometheus_client import Metric


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

    def render(self, accepted: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that an Accept header prefers."""
        encoder, content_type = importlib.import_module("prometheus_client.exposition").choose_encoder(
            accepted
        )
        return encoder(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """The families as prometheus-client has them; it calls this for each page."""
        for family in self._families():
            yield self._metric(family)

    def _metric(self, family: Family) -> Metric:
        name = family.name.removesuffix("_total") if family.kind == COUNTER else family.name
        metric: Metric = self._client.Metric(name, family.help, family.kind)
        for labels, value in family.samples:
            _add(metric, family.name, label_values(labels), value)
        for part in family.slices:
            common = label_values(part.common)
            for labels, value in part.samples():
                _add(metric, family.name, {**common, **label_values(labels)}, value)
        return metric


def _add(metric: Metric, name: str, labels: Mapping[str, str], value: Value) -> None:
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
