"""The lag job at a real cluster: figures that the test knows, brokers that are gone, alerts, and plans that grow with nothing."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from aerobee.errors import ConfigError
from aerobee.message import Message, MessageQueue
from aerobee.spark import lag_job
from aerobee.spark.lag_job import (
    History,
    evaluation,
    groups_of,
    look,
    report,
    send_alerts,
    write_metrics,
    write_page,
)
from aerobee.testing.threaded_cluster import ThreadedCluster
from tests.unit.spark.pages import figures


def test_lag_is_unknown_without_an_answering_broker(spark: Any, tmp_path: Path):
    with ThreadedCluster(brokers=2) as own:
        own.create_topic("orders", 1)
        own.create_topic("alerts", 1)
        queues = [MessageQueue("orders", name, 0) for name in own.broker_names]
        with own.producer() as producer:
            for n in range(30):
                producer.send(Message("orders", b"%d" % n), queue=queues[n % 2])
        with own.admin() as admin:
            admin.create_group("billing")
        with own.pull_consumer("billing") as consumer:
            consumer.assign(queues)
            consumer.commit({queues[0]: 5, queues[1]: 15})
        history = History("parquet", str(tmp_path / "history"))
        at_ms = look(spark, own.nameserver_address, history)
        rows = {row["broker"]: row for row in evaluation(history.read(spark), at_ms).collect()}
        assert {name: row["lag"] for name, row in rows.items()} == {"broker-a": 10, "broker-b": 0}
        assert rows["broker-b"]["state"] == "OK"
        assert 0 < rows["broker-a"]["lag_ms"] < 600_000
        assert 71 * 3600 < rows["broker-a"]["retention_s"] < 73 * 3600
        own.kill_broker(0)
        time.sleep(0.01)
        at_ms = look(spark, own.nameserver_address, history)
        result = evaluation(history.read(spark), at_ms).cache()
        gone = {row["broker"]: row for row in result.collect()}["broker-a"]
        assert (gone["state"], gone["lag"], gone["lag_ms"]) == ("UNKNOWN", None, None)
        assert "not registered" in gone["reason"]
        (group,) = groups_of(result).collect()
        assert (group["group"], group["lag"], group["unknown_queues"]) == ("billing", 0, 1)
        assert (group["retry"], group["dead"]) == (0, 0), "no message was sent back: there are no such topics"
        own.start_broker(0)
        send_alerts(result, own.nameserver_address, "alerts")
        alerts = spark.read.format("rocketmq").options(nameservers=own.nameserver_address, subscribe="alerts")
        assert [(row.key, row.tags) for row in alerts.load().collect()] == [("billing", "UNKNOWN")]
        page = tmp_path / "lag.html"
        write_page(result, history.read(spark), str(page), at_ms, hours=1)
        ((heat,), _), _ = figures(page.read_text())
        assert heat["y"] == ["billing"]
        assert 10 in heat["customdata"][0], "the first sample, when both brokers answered"
        metrics = tmp_path / "lag.prom"
        write_metrics(result, str(metrics), at_ms)
        lines = metrics.read_text().splitlines()
        assert 'aerobee_lag_job_messages{cluster="DefaultCluster",consumer_group="billing"} 0' in lines
        assert 'aerobee_lag_job_unknown_queues{cluster="DefaultCluster",consumer_group="billing"} 1' in lines
        assert list(tmp_path.glob("*.unfinished")) == []
        screen = io.StringIO()
        report(result, Console(file=screen, width=200))
        assert "billing" in screen.getvalue()


def test_a_resumed_lag_job_begins_before_groups_and_forgets(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    history, prom, page = tmp_path / "history", tmp_path / "lag.prom", tmp_path / "lag.html"
    words = [
        "--history",
        str(history),
        "--page",
        str(page),
        "--metrics",
        str(prom),
        "--keep",
        "1",
        "--rounds",
    ]
    with ThreadedCluster(brokers=1) as own:
        seen: list[str] = []
        aged: list[Path] = []

        def next_look(seconds: float) -> None:
            seen.append(prom.read_text())
            assert "<html" in page.read_text()
            if len(seen) == 1:
                own.create_topic("orders", 1)
                with own.producer() as producer:
                    producer.send(Message("orders", b"x"))
                with own.admin() as admin:
                    admin.create_group("billing")
                with own.pull_consumer("billing") as consumer:
                    queue = MessageQueue("orders", own.broker_names[0], 0)
                    consumer.assign([queue])
                    consumer.commit({queue: 0})
            elif len(seen) == 2:
                (first,) = history.glob("part-*.parquet")
                os.utime(first, (time.time() - 7200,) * 2)
                aged.append(first)
            else:
                raise InterruptedError

        nothing = ["--nameservers", own.nameserver_address, "--history", str(tmp_path / "none")]
        with pytest.raises(ConfigError, match="no history yet"):
            lag_job.main(nothing)
        monkeypatch.setattr(lag_job, "time", SimpleNamespace(sleep=next_look, time_ns=time.time_ns))
        with pytest.raises(InterruptedError):
            lag_job.main(["--nameservers", own.nameserver_address, *words, "0"])
        assert "billing" not in seen[0]
        assert all('consumer_group="billing"} 1' in text for text in seen[1:])
        (left,) = history.glob("part-*.parquet")
        assert left not in aged
        assert [each.name for each in history.glob(".part-*")] == [f".{left.name}.crc"]


def test_samples_by_which_a_state_is_judged_are_kept(tmp_path: Path) -> None:
    words = ["--nameservers", "127.0.0.1:1", "--history", str(tmp_path), "--keep", "0.05"]
    with pytest.raises(ConfigError, match=r"--keep 0\.05 is 180 s: a state is judged by the last 360 s"):
        lag_job.main(words)


def test_files_that_another_job_has_deleted_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / f"part-{name}.parquet").touch()
    stat = Path.stat

    def gone(path: Path, **how: Any) -> os.stat_result:
        if path.name == "part-a.parquet":
            path.unlink(missing_ok=True)
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", gone)
    history = lag_job.History("parquet", str(tmp_path), {})
    assert lag_job.forget(history, 1 << 62) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", [("jdbc", ""), ("parquet", "s3a://bucket/lag"), ("delta", "lag")])
def test_only_samples_in_a_directory_are_deleted(where: tuple[str, str]) -> None:
    words = ["--nameservers", "127.0.0.1:1", "--format", where[0], "--history", where[1], "--keep", "1"]
    with pytest.raises(ConfigError, match="--keep 1"):
        lag_job.main(words)


def test_the_plan_joins_nothing_and_reads_the_last_windows_only(spark: Any, tmp_path: Path):
    history = History("parquet", str(tmp_path / "history"))
    sample = {
        "at_ms": 1000, "cluster": "c", "group": "g", "topic": "t", "broker": "b", "queue_id": 0, "committed": 1,
        "min_offset": 0, "max_offset": 2, "filtered_lag": None, "oldest_ms": None, "retention_ms": None,
        "is_attended": True, "subscriptions_differ": False, "error": "", "lock_held_ms": None,
    }  # fmt: skip
    history.append(spark, [sample])
    frame = groups_of(evaluation(history.read(spark), 500_000))
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Cartesian" not in plan
    assert "Join" not in plan
    assert (
        "PushedFilters: [IsNotNull(at_ms), GreaterThan(at_ms,140000), LessThanOrEqual(at_ms,500000)]" in plan
    )
    assert frame.count() == 0
