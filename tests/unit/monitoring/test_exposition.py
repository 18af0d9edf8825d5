"""Pages of the text format, read by Prometheus' own parser."""

from __future__ import annotations

import gzip
import random
from functools import partial
from math import inf

from prometheus_client.parser import text_string_to_metric_families

from aerobee.monitoring.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Family,
    Histogram,
    Slice,
    joined,
    label_text,
    number_text,
)
from aerobee.monitoring.page import SAMPLES_A_PIECE, Page, PageMaker


def parsed(page: str) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    return {
        family.name: [(sample.name, sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(page)
    }


def pages(families: list[Family], maker: PageMaker | None = None) -> Page:
    maker = maker or PageMaker()
    for _ in maker.make(families, 0.0):
        assert not maker.page.is_whole
    assert maker.page.is_whole
    return maker.page


def render(families: list[Family]) -> str:
    page = pages(families)
    text = b"".join(page.texts())
    assert gzip.decompress(b"".join(page.gzip_parts())) == text
    assert page.length == len(text)
    return text.decode()


def test_counters_and_gauges_are_read_as_they_were_meant() -> None:
    labels = label_text({"topic": "orders", "note": 'a "quoted" \\ word\nand a line'})
    page = render(
        [
            Family("messages_total", COUNTER, "Stored\nhere", [(labels, 3)]),
            Family("age", GAUGE, "", [("", 0.25), (label_text({"topic": "ü"}), inf)]),
        ]
    )
    found = parsed(page)
    assert found["messages"] == [
        ("messages_total", {"topic": "orders", "note": 'a "quoted" \\ word\nand a line'}, 3.0)
    ]
    assert found["age"] == [("age", {}, 0.25), ("age", {"topic": "ü"}, inf)]


def test_a_family_without_samples_is_not_there() -> None:
    assert render([Family("nothing", GAUGE, "", iter(()))]) == ""


def test_a_histogram_has_its_buckets_its_count_and_its_sum() -> None:
    value = Histogram(((0.5, 1), (1.0, 3)), 4, 7.5)
    page = render([Family("took", HISTOGRAM, "", [(label_text({"a": "b"}), value)])])
    assert parsed(page)["took"] == [
        ("took_bucket", {"a": "b", "le": "0.5"}, 1.0),
        ("took_bucket", {"a": "b", "le": "1.0"}, 3.0),
        ("took_bucket", {"a": "b", "le": "+Inf"}, 4.0),
        ("took_count", {"a": "b"}, 4.0),
        ("took_sum", {"a": "b"}, 7.5),
    ]


def test_a_long_page_comes_in_pieces() -> None:
    many = [(label_text({"n": str(n)}), n) for n in range(3 * SAMPLES_A_PIECE)]
    assert len(list(PageMaker().make([Family("n", GAUGE, "", many)], 0.0))) == 3
    assert len(parsed(render([Family("n", GAUGE, "", many)]))["n"]) == 3 * SAMPLES_A_PIECE


def test_a_slice_is_made_again_only_when_its_token_changes() -> None:
    values, made = [1, 2, 3], []

    def family() -> Family:
        def samples(position: int) -> list[tuple[str, float]]:
            made.append(position)
            return [(label_text({"position": str(position)}), values[position])] if values[position] else []

        slices = [Slice(value, partial(samples, position)) for position, value in enumerate(values)]
        return Family("value", GAUGE, "", slices=slices)

    maker = PageMaker()

    def shown() -> list[float]:
        page = pages([family(), Family("after", GAUGE, "", [("", 7)])], maker)
        text = gzip.decompress(b"".join(page.gzip_parts())).decode()
        assert text.encode() == b"".join(page.texts())
        return [value for _, _, value in parsed(text).get("value", [])]

    assert shown() == [1, 2, 3]
    assert made == [0, 1, 2]
    values[1] = 20
    assert shown() == [1, 20, 3]
    assert made == [0, 1, 2, 1]
    assert shown() == [1, 20, 3]
    assert made == [0, 1, 2, 1]
    values[0] = 0
    assert shown() == [20, 3]
    del values[:]
    assert shown() == []


def test_checksums_of_pieces_of_any_length_are_combined() -> None:
    rng = random.Random(5)
    for _ in range(30):
        texts = [
            "x" * rng.choice((1, 7, 300, 70_000)) + str(rng.random()) for _ in range(rng.randrange(1, 6))
        ]
        slices = [Slice(text, partial(lambda text: [(label_text({"t": text}), 1)], text)) for text in texts]
        page = pages([Family("n", GAUGE, "", slices=slices)])
        assert gzip.decompress(b"".join(page.gzip_parts())) == b"".join(page.texts())


def test_numbers_and_labels_as_text() -> None:
    assert [number_text(value) for value in (1, 1.5, True, -inf, float("nan"))] == [
        "1",
        "1.5",
        "1",
        "-Inf",
        "NaN",
    ]
    assert joined("", 'a="b"', "", 'c="d"') == 'a="b",c="d"'
