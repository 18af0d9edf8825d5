"""The lag job's file for Prometheus: read back by Prometheus' own parser."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from aerobee.spark.lag_metrics import GROUPS_MAX, PREFIX, metrics_text


def row(group: str, **more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(
        ("lag", "retry", "dead", "lag_ms", "consume_rate", "produce_rate", "drain_s", "retention_s")
    )
    return {"cluster": "c", "group": group, "state": "OK", "unknown_queues": 0, **nothing, **more}


def read(text: str) -> dict[tuple[str, str, str], float]:
    return {
        (
            sample.name.removeprefix(PREFIX),
            sample.labels.get("consumer_group", ""),
            sample.labels.get("state", ""),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_numbers_come_with_their_unit_and_what_is_not_known_has_no_line() -> None:
    found = read(
        metrics_text(
            [row("a", lag=7, lag_ms=1_500, drain_s=2.25), row("b", state="STALL", unknown_queues=3)], 12_345
        )
    )
    assert found == {
        ("sample_timestamp_seconds", "", ""): 12.345,
        ("messages", "a", ""): 7,
        ("oldest_seconds", "a", ""): 1.5,
        ("drain_seconds", "a", ""): 2.25,
        ("unknown_queues", "a", ""): 0,
        ("unknown_queues", "b", ""): 3,
        ("state", "a", "OK"): 1,
        ("state", "b", "STALL"): 1,
    }


def test_untrusted_names_stay_inside_their_label() -> None:
    name = 'a"} 1\nevil{x="\\'
    assert set(read(metrics_text([row(name, lag=1)], 0))) == {
        ("sample_timestamp_seconds", "", ""),
        ("messages", name, ""),
        ("unknown_queues", name, ""),
        ("state", name, "OK"),
    }


def test_the_worst_groups_only() -> None:
    rows = [row(f"g{number}", lag=number) for number in range(GROUPS_MAX + 10)]
    found = [key for key in read(metrics_text(rows, 0)) if key[0] == "messages"]
    assert found == [("messages", f"g{number}", "") for number in range(GROUPS_MAX)]
