"""Pages of the text format, read by Prometheus' own parser."""

from __future__ import annotations

from math import inf

from prometheus_client.parser import text_string_to_metric_families

from aerobee.monitoring.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    LINES_A_PIECE,
    Family,
    Histogram,
    joined,
    label_text,
    number_text,
    render,
)


def parsed(page: str) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    return {
        family.name: [(sample.name, sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(page)
    }


def test_counters_and_gauges_are_read_as_they_were_meant() -> None:
    labels = label_text({"topic": "orders", "note": 'a "quoted" \\ word\nand a line'})
    page = "".join(
        render(
            [
                Family("messages_total", COUNTER, "Stored\nhere", [(labels, 3)]),
                Family("age", GAUGE, "", [("", 0.25), (label_text({"topic": "ü"}), inf)]),
            ]
        )
    )
    found = parsed(page)
    assert found["messages"] == [
        ("messages_total", {"topic": "orders", "note": 'a "quoted" \\ word\nand a line'}, 3.0)
    ]
    assert found["age"] == [("age", {}, 0.25), ("age", {"topic": "ü"}, inf)]


def test_a_family_without_samples_is_not_there() -> None:
    assert "".join(render([Family("nothing", GAUGE, "", iter(()))])) == ""


def test_a_histogram_has_its_buckets_its_count_and_its_sum() -> None:
    value = Histogram(((0.5, 1), (1.0, 3)), 4, 7.5)
    page = "".join(render([Family("took", HISTOGRAM, "", [(label_text({"a": "b"}), value)])]))
    assert parsed(page)["took"] == [
        ("took_bucket", {"a": "b", "le": "0.5"}, 1.0),
        ("took_bucket", {"a": "b", "le": "1.0"}, 3.0),
        ("took_bucket", {"a": "b", "le": "+Inf"}, 4.0),
        ("took_count", {"a": "b"}, 4.0),
        ("took_sum", {"a": "b"}, 7.5),
    ]


def test_a_long_page_comes_in_pieces() -> None:
    many = ((label_text({"n": str(n)}), n) for n in range(3 * LINES_A_PIECE))
    pieces = list(render([Family("n", GAUGE, "", many)]))
    assert len(pieces) >= 3
    assert len(parsed("".join(pieces))["n"]) == 3 * LINES_A_PIECE


def test_numbers_and_labels_as_text() -> None:
    assert [number_text(value) for value in (1, 1.5, True, -inf, float("nan"))] == [
        "1",
        "1.5",
        "1",
        "-Inf",
        "NaN",
    ]
    assert joined("", 'a="b"', "", 'c="d"') == 'a="b",c="d"'
