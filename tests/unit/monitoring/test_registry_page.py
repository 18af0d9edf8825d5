"""Pages by prometheus-client say what the families say, in both formats."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra metrics")

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from aerobee.errors import ConfigError
from aerobee.monitoring.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Family,
    Histogram,
    Slice,
    heading,
    label_text,
    sample_text,
)
from aerobee.monitoring.registry_page import RegistryPage

LABELS = {"topic": 'a"b\\c\nd', "group": "größe"}
TEXT = label_text(LABELS)


def families() -> list[Family]:
    durations = Histogram(((0.1, 1), (2.5, 3)), 4, 9.5)
    return [
        Family("aerobee_up", GAUGE, "One line\nand another.", (("", 1),)),
        Family("aerobee_sent_total", COUNTER, "Sent.", ((TEXT, 7), (label_text({"topic": "t"}), 2.5))),
        Family("aerobee_took_seconds", HISTOGRAM, "Took.", ((TEXT, durations),)),
        Family("aerobee_parts", GAUGE, "Parts.", slices=(Slice(1, lambda: ((TEXT, 3),), 'node="n"'),)),
    ]


def samples(text: str, parse: object = text_string_to_metric_families) -> dict[object, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)  # type: ignore[operator]
        for sample in family.samples
        if sample.name.startswith("aerobee_")
    }


def test_a_page_has_the_samples_that_our_renderer_writes() -> None:
    body, content_type = RegistryPage(families).render("")
    assert content_type.startswith("text/plain")
    ours = "".join(
        heading(family)
        + sample_text(family.name, family.samples)
        + "".join(sample_text(family.name, part.samples(), part.common) for part in family.slices)
        for family in families()
    )
    assert samples(body.decode()) == samples(ours)
    assert len(samples(ours)) == 9
    assert "# TYPE aerobee_sent_total counter" in body.decode()


def test_openmetrics_is_served_to_those_that_accept_it() -> None:
    body, content_type = RegistryPage(families).render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert samples(body.decode(), openmetrics_families) == samples(
        RegistryPage(families).render("")[0].decode()
    )


def test_a_page_has_the_metrics_of_the_process() -> None:
    text = RegistryPage(families).render("")[0].decode()
    assert "python_info{" in text
    assert "python_gc_collections_total" in text
    assert sys.platform != "linux" or "process_resident_memory_bytes" in text


def test_values_are_read_for_each_page() -> None:
    reads: list[int] = []

    def changing() -> list[Family]:
        reads.append(1)
        return [Family("aerobee_reads", GAUGE, "Reads.", (("", len(reads)),))]

    page = RegistryPage(changing)
    assert [samples(page.render("")[0].decode())["aerobee_reads", ()] for _ in range(2)] == [1, 2]


def test_a_missing_package_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match="aerobee\\[metrics\\]"):
        RegistryPage(families)
