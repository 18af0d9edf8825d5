"""Numbers as OTLP: labels, kinds, differences; settings."""

from __future__ import annotations

from math import inf

import pytest

from aerobee.errors import ConfigError
from aerobee.metrics_config import MetricsConfig
from aerobee.monitoring.deltas import Deltas, Point
from aerobee.monitoring.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Histogram,
    Value,
    label_text,
    label_values,
)
from aerobee.monitoring.otlp import OtlpReceiver, target_of

TARGET = {"metrics_exporter_type": "OTLP_GRPC", "metrics_grpc_exporter_target": "http://127.0.0.1:4317"}


def point(kind: str, value: Value, labels: str = 'topic="a"') -> Point:
    return Point("number", kind, labels, value, 5)


@pytest.mark.parametrize(
    "labels",
    [{}, {"topic": "a", "note": 'a "quoted" \\ word\nand \\n a line, too="1"'}, {"topic": "ü", "empty": ""}],
)
def test_labels_are_read_back(labels: dict[str, str]) -> None:
    assert label_values(label_text(labels)) == labels


@pytest.mark.parametrize(
    ("text", "address", "by_tls"),
    [
        ("http://collector:4317", "collector:4317", False),
        ("HTTP://[::1]:4317/", "[::1]:4317", False),
        ("https://collector:4317", "collector:4317", True),
        ("collector:4317", "collector:4317", True),  # as RocketMQ reads it
    ],
)
def test_a_target_says_whether_by_tls(text: str, address: str, by_tls: bool) -> None:
    assert target_of(text) == (address, by_tls)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"metrics_exporter_type": "OTLP"}, "must be DISABLE or of LOG, OTLP_GRPC, PROM"),
        ({"metrics_exporter_type": "PROM,OTLP_GRPC"}, "needs metricsGrpcExporterTarget"),
        ({"metrics_grpc_exporter_header": "ok:1,secret-without-name"}, "which part 2 is not"),
        ({"metric_grpc_exporter_interval_in_mills": 0}, "metricGrpcExporterIntervalInMills is 0"),
        ({"metrics_prom_exporter_port": 65_536}, "metricsPromExporterPort is 65536"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        MetricsConfig(**settings).check_metrics()  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)


def test_a_headers_name_is_of_ascii() -> None:
    with pytest.raises(ConfigError, match="part 2 is not"):
        MetricsConfig(metrics_grpc_exporter_header="a:1,ü-b:2").otlp_headers  # noqa: B018


def test_several_exporters_and_headers() -> None:
    config = MetricsConfig(**TARGET, metrics_grpc_exporter_header="Authorization:Bearer a:b, X-Scope:1")
    assert config.exporters == {"OTLP_GRPC"}
    assert config.otlp_headers == (("authorization", "Bearer a:b"), ("x-scope", "1"))
    assert "Bearer" not in repr(config)
    assert MetricsConfig().exporters == frozenset()


def test_a_request_has_one_family_for_points_that_follow_each_other() -> None:
    receiver = OtlpReceiver(MetricsConfig(**TARGET), scope="broker-meter")
    try:
        request = receiver.request(9)
        request.add(Point("in", COUNTER, 'topic="a"', 3, 5), "how many")
        request.add(Point("in", COUNTER, 'topic="b"', 2.5, 5), "how many")
        request.add(Point("age", GAUGE, "", inf, 5), "")
        request.add(Point("took", HISTOGRAM, "", Histogram(((1.0, 2), (2.0, 2)), 5, 9.5), 5), "")
    finally:
        receiver.close()
    (scoped,) = request.message.resource_metrics[0].scope_metrics
    assert scoped.scope.name == "broker-meter"
    counter, gauge, histogram = scoped.metrics
    assert (counter.name, counter.description, counter.sum.is_monotonic) == ("in", "how many", True)
    first, second = counter.sum.data_points
    assert (first.as_int, first.start_time_unix_nano, first.time_unix_nano) == (3, 5, 9)
    assert (second.as_double, second.attributes[0].value.string_value) == (2.5, "b")
    assert gauge.gauge.data_points[0].as_double == inf
    (took,) = histogram.histogram.data_points
    assert (list(took.explicit_bounds), list(took.bucket_counts)) == ([1.0, 2.0], [2, 0, 3])
    assert (took.count, took.sum) == (5, 9.5)


def test_differences_lose_nothing_of_what_did_not_arrive() -> None:
    deltas = Deltas(begin_ns=1)

    def since(value: Value, kind: str = COUNTER) -> tuple[Value, int] | None:
        shown = deltas.since(point(kind, value))
        return None if shown is None else (shown.value, shown.begin_ns)

    assert since(3) == (3, 1)
    assert since(4) == (4, 1)  # the first one did not arrive
    deltas.taken([point(COUNTER, 4)], at_ns=10)
    deltas.round_over()
    assert since(4) is None
    assert since(7) == (3, 10)
    deltas.taken([point(COUNTER, 7)], at_ns=20)
    assert since(2) == (2, 20)  # deleted and recreated
    assert since(7, GAUGE) == (7, 5)
    shown = deltas.since(point(COUNTER, 8))
    assert shown is not None
    assert label_values(shown.labels) == {"topic": "a", "aggregation": "delta"}


def test_series_that_are_gone_are_forgotten() -> None:
    deltas = Deltas(begin_ns=1)
    deltas.taken([point(COUNTER, 4)], at_ns=10)
    deltas.round_over()
    deltas.round_over()
    shown = deltas.since(point(COUNTER, 5))
    assert shown is not None
    assert (shown.value, shown.begin_ns) == (5, 1)


def test_differences_of_histograms() -> None:
    deltas = Deltas(begin_ns=1)
    deltas.taken([point(HISTOGRAM, Histogram(((1.0, 2), (2.0, 3)), 4, 8.0))], at_ns=10)
    second = deltas.since(point(HISTOGRAM, Histogram(((1.0, 2), (2.0, 5)), 7, 20.0)))
    assert second is not None
    assert second.value == Histogram(((1.0, 0), (2.0, 2)), 3, 12.0)
    assert deltas.since(point(HISTOGRAM, Histogram(((1.0, 2), (2.0, 3)), 4, 8.0))) is None


def test_a_histogram_that_was_made_anew_with_more_has_no_negative_bucket() -> None:
    deltas = Deltas(begin_ns=1)

    def gained(*counts: int, total: int, value_sum: float) -> Histogram:
        value = Histogram(tuple(zip((1.0, 2.0, 4.0), counts, strict=True)), total, value_sum)
        point = Point("took", HISTOGRAM, "", value, 1)
        shown = deltas.since(point)
        deltas.taken([point], 2)
        deltas.round_over()
        assert shown is not None
        assert isinstance(shown.value, Histogram)
        return shown.value

    gained(5, 5, 5, total=5, value_sum=2.5)
    again = gained(1, 2, 8, total=9, value_sum=30.0)
    assert (again.buckets, again.count) == (((1.0, 1), (2.0, 2), (4.0, 8)), 9)
    beyond = gained(1, 2, 12, total=12, value_sum=31.0)  # one beyond the last end cannot have come back
    assert beyond.count == 12
    grown = gained(1, 3, 14, total=15, value_sum=50.0)
    assert (grown.buckets, grown.count) == (((1.0, 0), (2.0, 1), (4.0, 2)), 3)
