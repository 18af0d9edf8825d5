"""The placement job: rates, seasons and growth that the test knows, plans that grow with nothing, and a plan of a real cluster."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aerobee.errors import UsageError
from aerobee.message import Message
from aerobee.placement.load_rows import LoadSample
from aerobee.placement.plan import parse_plan
from aerobee.spark.lag_job import History
from aerobee.spark.placement_job import (
    HOURS_PER_WEEK,
    LOAD_SCHEMA,
    MS_PER_HOUR,
    busiest_slot,
    growth,
    hourly,
    load_model,
    main,
    rates,
    report,
    take_samples,
)
from aerobee.testing.threaded_cluster import ThreadedCluster

NONE: dict[str, dict[str, object]] = {}


def two_looks(hour: int, topic: str, end: int, gained: int, **more: object) -> list[LoadSample]:
    """The begin and half an hour later of one hour; 1,800 messages are 1 a second."""
    first = LoadSample(
        at_ms=hour * MS_PER_HOUR,
        broker="a",
        topic=topic,
        queue_id=0 if topic else -1,
        end=end,
        retention_ms=MS_PER_HOUR,
    )
    first = replace(first, **more)  # type: ignore[arg-type]
    return [first, replace(first, at_ms=first.at_ms + 1_800_000, end=end + gained)]


def frame(spark: Any, samples: list[LoadSample]) -> Any:
    return spark.createDataFrame([tuple(asdict(each).values()) for each in samples], LOAD_SCHEMA)


def test_the_busiest_hour_of_the_week_counts_and_new_queues_count_as_they_are(spark: Any):
    samples = []
    for week in range(2):
        for slot, rate in ((5, 1), (9, 10)):
            hour = week * HOURS_PER_WEEK + slot
            samples += two_looks(hour, "", hour * 10**6, 18_000 * rate)
            samples += two_looks(hour, "orders", hour * 10**6, 1_800 * rate, size=100.0)
    new = HOURS_PER_WEEK + 5
    samples += two_looks(new, "fresh", 0, 3_600, size=10.0)
    samples += two_looks(HOURS_PER_WEEK + 10, "orders", 0, 0, size=100.0)
    hours = hourly(frame(spark, samples))
    assert busiest_slot(hours) == 9
    found = {row["topic"]: row["messages"] for row in rates(hours, 9).collect()}
    assert found == {"": 100.0, "orders": 10.0, "fresh": 2.0}
    doubled = samples + samples
    assert rates(hourly(frame(spark, doubled)), 9).where("topic = 'orders'").collect()[0]["messages"] == 10.0


def test_growth_is_a_week_against_the_one_before_and_bounded(spark: Any):
    samples = []
    for hour in range(1, 2 * HOURS_PER_WEEK + 1):
        rate = 2 if hour <= HOURS_PER_WEEK else 3
        samples += two_looks(hour, "grows", 0, 1_800 * rate)
        samples += two_looks(hour, "jumps", 0, 1_800 * rate**6)
        if hour > HOURS_PER_WEEK:
            samples += two_looks(hour, "new", 0, 1_800)
    found = {
        r["topic"]: r["factor"]
        for r in growth(hourly(frame(spark, samples)), 2 * HOURS_PER_WEEK, 14).collect()
    }
    assert found == {"grows": pytest.approx(2.25), "jumps": 3.0}


def test_a_queue_whose_end_went_back_counts_as_nothing(spark: Any):
    (row,) = hourly(frame(spark, two_looks(3, "again", 500, -400))).collect()
    assert row["messages"] == 0


def test_no_step_joins_and_the_history_is_read_by_column(spark: Any, tmp_path: Path):
    history = History("parquet", str(tmp_path / "load"), {}, LOAD_SCHEMA)
    history.append(spark, [asdict(each) for each in two_looks(3, "orders", 0, 100)])
    hours = hourly(history.read(spark))
    for result in (rates(hours, 3), growth(hours, 3, 7)):
        plan = result._jdf.queryExecution().executedPlan().toString()
        assert "Join" not in plan
        assert "Cartesian" not in plan
        assert "SortAggregate" not in plan
        assert "members" not in plan


def test_a_history_that_holds_too_little_says_so(spark: Any):
    with pytest.raises(UsageError, match="empty"):
        load_model(frame(spark, []), capacities=NONE, ordered=(), days=0)
    with pytest.raises(UsageError, match="no two samples"):
        load_model(frame(spark, two_looks(3, "orders", 0, 5)[:1]), capacities=NONE, ordered=(), days=0)


def test_a_real_cluster_gets_a_plan_that_names_what_it_leaves_alone(spark: Any, tmp_path: Path):
    with ThreadedCluster(brokers=2) as own:
        with own.admin() as admin:
            admin.create_topic("clicks", queue_count=4, broker=own.broker_addresses[0])
            admin.create_topic(
                "bills", queue_count=4, broker=own.broker_addresses[0], attributes={"message.type": "FIFO"}
            )
        with own.producer() as producer:
            arguments = ["--nameservers", own.nameserver_address, "--history", str(tmp_path / "load")]
            arguments += ["--plan", str(tmp_path / "plan.json"), "--every", "0.1"]
            arguments += ["--page", str(tmp_path / "plan.html"), "--page-zone", "Europe/Berlin"]
            history = History("parquet", str(tmp_path / "load"), {}, LOAD_SCHEMA)
            take_samples(spark, own.nameserver_address, history, 1, 0)
            for number in range(200):
                producer.send(Message("clicks", b"%d" % number * 20))
        assert main([*arguments, "--sample", "1"]) == 0
    plan = parse_plan((tmp_path / "plan.json").read_bytes())
    assert "broker-b: 0 to " in (tmp_path / "plan.html").read_text()
    (change,) = plan.changes
    assert change.topic == "clicks"
    assert set(change.after) == {"broker-a", "broker-b"}
    assert plan.after.imbalance["bytes_in"] < plan.before.imbalance["bytes_in"]
    assert any("bills: order is promised" in warning for warning in plan.warnings)
    screen = io.StringIO()
    report(plan, Console(file=screen, width=200))
    assert "1 topic changes" in screen.getvalue()
