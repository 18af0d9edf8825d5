"""Writes dashboards/*.json: `python deploy/grafana/generate.py`. A test holds the files to what this writes.

A panel is a title, a unit, what it is drawn as, and its queries, each with a legend. Rates use the window $__rate_interval; every
dashboard has the variables datasource and cluster, some more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "dashboards"
WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
C = 'cluster="$cluster"'
EACH = "{{node_id}} {{instance}}"  # a master and its slaves have one node_id
B = C + ',node_id=~"$broker"'
T = C + ',topic=~"$topic"'
G = C + ',consumer_group=~"$group"'


@dataclass(frozen=True)
class Panel:
    """One panel; `queries` are (expression, legend). `kind`: timeseries, stat, table."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    note: str = ""
    span: int = 8
    height: int = 7


@dataclass(frozen=True)
class Board:
    """One dashboard; `variables` are (name, label_values query)."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = field(default=())


def one(title: str, query: str, legend: str = "", **options: Any) -> Panel:
    return Panel(title, ((query, legend),), **options)


def rate(name: str, where: str, by: str) -> str:
    return f"sum by ({by}) (rate({name}{{{where}}}[$__rate_interval]))"


def rates(title: str, name: str, where: str, by: str) -> Panel:
    """The rate of a counter, a line for each value of the labels `by`."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return one(title, rate(name, where, by), legend, unit="cps")


def rates_of_each(title: str, name: str, where: str) -> Panel:
    """The rate of a counter, a line for each server."""
    return one(title, f"rate({name}{{{where}}}[$__rate_interval])", EACH, unit="cps")


def percentile(share: float, name: str, where: str, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return (
        f"histogram_quantile({share}, sum by ({labels}) (rate({name}_bucket{{{where}}}[$__rate_interval])))"
    )


def durations(title: str, name: str, where: str, by: str) -> Panel:
    """Median and 99th percentile of a histogram in seconds."""
    queries = (
        (percentile(share, name, where, by), f"{{{{{by}}}}} {text}")
        for share, text in ((0.5, "median"), (0.99, "99 %"))
    )
    return Panel(title, tuple(queries), unit="s")


STATES = 'sum by (consumer_group, topic, state) (aerobee_consumer_lag_state{%s,state!="OK"})'
BROKERS = ("broker", 'label_values(rocketmq_topic_number{cluster="$cluster"}, node_id)')
TOPICS = ("topic", 'label_values(rocketmq_messages_in_total{cluster="$cluster"}, topic)')
GROUPS = ("group", 'label_values(aerobee_consumer_members{cluster="$cluster"}, consumer_group)')

CLUSTER = Board(
    "aerobee-cluster",
    "Aerobee: cluster",
    (
        one(
            "Messages in",
            f"sum(rate(rocketmq_messages_in_total{{{C}}}[$__rate_interval]))",
            "in",
            unit="cps",
            kind="stat",
            span=4,
            height=4,
        ),
        one(
            "Messages out",
            f"sum(rate(rocketmq_messages_out_total{{{C}}}[$__rate_interval]))",
            "out",
            unit="cps",
            kind="stat",
            span=4,
            height=4,
        ),
        one(
            "Lag",
            f"sum(rocketmq_consumer_lag_messages{{{C}}})",
            "messages",
            kind="stat",
            span=4,
            height=4,
        ),
        one(
            "Longest lag",
            f"max(rocketmq_consumer_lag_latency{{{C}}}) / 1000",
            "",
            unit="s",
            kind="stat",
            span=4,
            height=4,
        ),
        one("Brokers that answer", f"count(aerobee_writable{{{C}}})", "", kind="stat", span=4, height=4),
        one("Dead letters", f"sum(aerobee_dead_letters{{{C}}})", "", kind="stat", span=4, height=4),
        one(
            "Messages in, by topic",
            rate("rocketmq_messages_in_total", C + ',is_system="false"', "topic"),
            "{{topic}}",
            unit="cps",
        ),
        rates("Messages out, by group", "rocketmq_messages_out_total", C, "consumer_group"),
        one(
            "Bytes in, by broker",
            rate("rocketmq_throughput_in_total", C, "node_id"),
            "{{node_id}}",
            unit="Bps",
        ),
        Panel(
            "Send latency",
            (
                (percentile(0.5, "aerobee_put_latency_seconds", C), "median"),
                (percentile(0.99, "aerobee_put_latency_seconds", C), "99 %"),
            ),
            unit="s",
        ),
        Panel(
            "Pull latency",
            (
                (percentile(0.5, "aerobee_get_latency_seconds", C), "median"),
                (percentile(0.99, "aerobee_get_latency_seconds", C), "99 %"),
            ),
            unit="s",
        ),
        one(
            "Lagging groups",
            f"topk(10, max by (consumer_group, topic) (rocketmq_consumer_lag_latency{{{C}}}) / 1000)",
            "{{consumer_group}} {{topic}}",
            unit="s",
        ),
        one(
            "Groups that are not OK",
            STATES % C,
            "{{consumer_group}} {{topic}} {{state}}",
            note="Queues in each state but OK",
        ),
        one("Disk used", f"aerobee_disk_used_ratio{{{C}}}", EACH, unit="percentunit"),
        one("Roles", f"aerobee_role{{{C}}}", "{{node_id}} {{role}} {{instance}}"),
        one(
            "Broker groups with a master (NameServers)",
            f"max by (broker) (aerobee_nameserver_has_master{{{C}}})",
            "{{broker}}",
        ),
        one(
            "Connections", f"sum by (node_id) (rocketmq_consumer_connections{{{C}}})", "{{node_id}} consumers"
        ),
        one("Topics", f"max(rocketmq_topic_number{{{C}}})", "topics"),
    ),
)
BROKER = Board(
    "aerobee-broker",
    "Aerobee: broker",
    (
        rates("Messages in", "rocketmq_messages_in_total", B, "node_id"),
        rates("Messages out", "rocketmq_messages_out_total", B, "node_id"),
        one("Bytes", rate("rocketmq_throughput_out_total", B, "node_id"), "{{node_id}} out", unit="Bps"),
        Panel(
            "Send latency",
            tuple(
                (percentile(share, "aerobee_put_latency_seconds", B, "node_id"), "{{node_id}} " + name)
                for share, name in ((0.5, "median"), (0.99, "99 %"), (0.999, "99.9 %"))
            ),
            unit="s",
        ),
        durations("Pull latency", "aerobee_get_latency_seconds", B, "node_id"),
        one(
            "Event loop lag",
            f"aerobee_loop_wait_seconds{{{B}}}",
            "{{node_id}} {{instance}}",
            unit="s",
        ),
        one(
            "Event loop blocked by single requests",
            f"rate(aerobee_loop_held_seconds_total{{{B}}}[$__rate_interval])",
            EACH,
            unit="percentunit",
            note="Share of the time in which one request or burst of 50 ms or more blocked the event loop",
        ),
        one("Longest request", f"aerobee_loop_held_longest_seconds{{{B}}}", EACH, unit="s"),
        rates_of_each("Refused: overload", "aerobee_overload_refused_total", B),
        rates_of_each("Refused: limits", "aerobee_bounds_reached_total", B),
        one("Disk used", f"aerobee_disk_used_ratio{{{B}}}", EACH, unit="percentunit"),
        one("Commit log size", f"rocketmq_storage_size{{{B}}}", EACH, unit="bytes"),
        one(
            "Not flushed",
            f"rocketmq_storage_flush_behind_bytes{{{B}}}",
            EACH,
            unit="bytes",
        ),
        one("Oldest message", f"rocketmq_storage_message_reserve_time{{{B}}} / 1000", EACH, unit="s"),
        one("Writable", f"aerobee_writable{{{B}}}", "{{node_id}} {{instance}}"),
        one(
            "Producers",
            f"sum by (node_id, language) (rocketmq_producer_connections{{{B}}})",
            "{{node_id}} {{language}}",
        ),
        one(
            "Consumers",
            f"sum by (node_id, consumer_group) (rocketmq_consumer_connections{{{B}}})",
            "{{consumer_group}}",
        ),
        rates_of_each("Pulls that found nothing", "aerobee_pulls_missed_total", B),
        one("Age of the lag figures", f"aerobee_lag_sample_age_seconds{{{B}}}", EACH, unit="s"),
        one("Metrics page CPU time", "aerobee_page_work_seconds", "{{instance}}", unit="s"),
    ),
    (BROKERS,),
)
TOPIC = Board(
    "aerobee-topic",
    "Aerobee: topic",
    (
        rates("Messages in", "rocketmq_messages_in_total", T, "topic"),
        one("Bytes in", rate("rocketmq_throughput_in_total", T, "topic"), "{{topic}}", unit="Bps"),
        one(
            "Bytes a message",
            f"sum by (topic) (rate(rocketmq_throughput_in_total{{{T}}}[$__rate_interval])) / sum by (topic) (rate(rocketmq_messages_in_total{{{T}}}[$__rate_interval]))",
            "{{topic}}",
            unit="bytes",
        ),
        rates("Messages out", "rocketmq_messages_out_total", T, "topic, consumer_group"),
        one(
            "Bytes out",
            rate("rocketmq_throughput_out_total", T, "topic, consumer_group"),
            "{{topic}} {{consumer_group}}",
            unit="Bps",
        ),
        one(
            "Lag",
            f"sum by (topic, consumer_group) (rocketmq_consumer_lag_messages{{{T}}})",
            "{{topic}} {{consumer_group}}",
        ),
        one(
            "Lag time",
            f"max by (topic, consumer_group) (rocketmq_consumer_lag_latency{{{T}}}) / 1000",
            "{{topic}} {{consumer_group}}",
            unit="s",
        ),
        rates("By broker", "rocketmq_messages_in_total", T, "topic, node_id"),
    ),
    (TOPICS,),
)
GROUP = Board(
    "aerobee-group",
    "Aerobee: group",
    (
        one(
            "Lag",
            f"sum by (consumer_group, topic) (rocketmq_consumer_lag_messages{{{G}}})",
            "{{consumer_group}} {{topic}}",
        ),
        one(
            "Lag after the filter",
            f"sum by (consumer_group, topic) (aerobee_consumer_lag_filtered_messages{{{G}}})",
            "{{consumer_group}} {{topic}}",
            note="Groups with a filter only",
        ),
        one(
            "Lag time",
            f"max by (consumer_group, topic) (rocketmq_consumer_lag_latency{{{G}}}) / 1000",
            "{{consumer_group}} {{topic}}",
            unit="s",
        ),
        one("Queues that are not OK", STATES % G, "{{consumer_group}} {{topic}} {{state}}"),
        one(
            "Which queues",
            f"aerobee_consumer_queue_lag_state{{{G}}}",
            "{{topic}} {{queue_id}} at {{node_id}}: {{state}}",
            kind="table",
        ),
        one(
            "Time to drain",
            f"max by (consumer_group, topic) (aerobee_consumer_drain_seconds{{{G}}})",
            "{{consumer_group}} {{topic}}",
            unit="s",
            note="Absent when the lag does not shrink",
        ),
        one(
            "Time until retention deletes an unread message",
            f"min by (consumer_group, topic) (aerobee_consumer_retention_left_seconds{{{G}}})",
            "{{consumer_group}} {{topic}}",
            unit="s",
        ),
        rates("Consumed", "rocketmq_messages_out_total", G, "consumer_group, topic"),
        one(
            "Handed out, not committed",
            f"sum by (consumer_group, topic) (rocketmq_consumer_inflight_messages{{{G}}})",
            "{{consumer_group}} {{topic}}",
        ),
        one(
            "Not handed out yet",
            f"sum by (consumer_group, topic) (rocketmq_consumer_ready_messages{{{G}}})",
            "{{consumer_group}} {{topic}}",
        ),
        one("Members", f"max by (consumer_group) (aerobee_consumer_members{{{G}}})", "{{consumer_group}}"),
        one(
            "Ordered queues: lock duration",
            f"aerobee_consumer_lock_held_seconds{{{G}}}",
            "{{topic}} {{queue_id}} {{client_id}}",
            unit="s",
        ),
        one(
            "Ordered queues: renewed",
            f"aerobee_consumer_lock_age_seconds{{{G}}}",
            "{{topic}} {{queue_id}} {{client_id}}",
            unit="s",
        ),
        one(
            "Dead letters, stored",
            f"sum by (consumer_group) (aerobee_dead_letters{{{G}}})",
            "{{consumer_group}}",
        ),
        rates("Dead letters, new", "rocketmq_send_to_dlq_messages_total", G, "consumer_group"),
        one(
            "Queues without an offset",
            f"sum by (consumer_group, topic) (aerobee_consumer_unknown_queues{{{G}}})",
            "{{consumer_group}} {{topic}}",
        ),
    ),
    (GROUPS,),
)
LATER = Board(
    "aerobee-later",
    "Aerobee: transactions and timers",
    (
        one("Open transactions", f"sum by (topic) (rocketmq_half_messages{{{C}}})", "{{topic}}"),
        one(
            "Oldest open transaction",
            f"max by (node_id) (aerobee_oldest_half_message_seconds{{{C}}})",
            "{{node_id}}",
            unit="s",
        ),
        Panel(
            "Transactions",
            (
                (f"sum(rate(rocketmq_commit_messages_total{{{C}}}[$__rate_interval]))", "committed"),
                (f"sum(rate(rocketmq_rollback_messages_total{{{C}}}[$__rate_interval]))", "rolled back"),
                (f"sum(rate(aerobee_transactions_given_up_total{{{C}}}[$__rate_interval]))", "given up"),
            ),
            unit="cps",
        ),
        one("Pending timer messages", f"sum by (topic) (rocketmq_timing_messages{{{C}}})", "{{topic}}"),
        Panel(
            "The timer",
            (
                (f"sum(rate(rocketmq_timer_enqueue_total{{{C}}}[$__rate_interval]))", "in"),
                (f"sum(rate(rocketmq_timer_dequeue_total{{{C}}}[$__rate_interval]))", "out"),
            ),
            unit="cps",
        ),
        one(
            "Timer lateness",
            f"max by (quantile) (aerobee_timer_delivery_late_seconds{{{C}}})",
            "{{quantile}}",
            unit="s",
        ),
        one(
            "Delay level lateness",
            f"max by (quantile) (aerobee_delay_level_late_seconds{{{C}}})",
            "{{quantile}}",
            unit="s",
        ),
        one(
            "Wait in delay levels", f"sum by (level) (aerobee_delay_level_messages{{{C}}})", "level {{level}}"
        ),
        one(
            "Due within the day",
            f"sum by (timer_bound_s) (rocketmq_timer_message_snapshot{{{C}}})",
            "before {{timer_bound_s}} s",
            note="Each counts from the previous bound on. Messages due after more than a day are in none.",
        ),
        one("Timer wheel lag", f"rocketmq_timer_dequeue_latency{{{C}}} / 1000", EACH, unit="s"),
        one("Not in the wheel yet", f"rocketmq_timer_enqueue_lag{{{C}}}", EACH),
        one("Handed out by pops", f"aerobee_pop_invisible{{{C}}}", EACH),
        rates_of_each("Redelivered pops", "rocketmq_pop_revive_retry_messages_total", C),
    ),
)
REPLICATION = Board(
    "aerobee-replication",
    "Aerobee: replication",
    (
        one("Roles", f"aerobee_role{{{C}}}", "{{node_id}} {{role}} {{instance}}", kind="table"),
        Panel(
            "In-sync replicas",
            (
                (f"aerobee_in_sync_replicas{{{C}}}", "{{node_id}}"),
                (f"aerobee_in_sync_replicas_min{{{C}}}", "{{node_id}} needs"),
            ),
        ),
        one(
            "Slave lag, bytes",
            f"aerobee_replica_behind_bytes{{{C}}}",
            "{{node_id}} {{replica}}",
            unit="bytes",
        ),
        one(
            "Slave lag, seconds",
            f"aerobee_replica_behind_seconds{{{C}}}",
            "{{node_id}} {{replica}}",
            unit="s",
        ),
        one("In-sync slaves", f"aerobee_replica_in_sync{{{C}}}", "{{node_id}} {{replica}}"),
        one("Connected to a master", f"aerobee_replication_connected{{{C}}}", "{{node_id}} {{instance}}"),
        one(
            "Lag reported by slaves, bytes",
            f"aerobee_replication_behind_bytes{{{C}}}",
            "{{node_id}} {{instance}}",
            unit="bytes",
        ),
        one(
            "Time since the last byte of the master",
            f"aerobee_replication_silent_seconds{{{C}}}",
            "{{node_id}} {{instance}}",
            unit="s",
        ),
        one("Epoch of the role", f"aerobee_role_epoch{{{C}}}", "{{node_id}} {{instance}}"),
        one(
            "Controllers: who leads", "aerobee_controller_is_leader", "{{controller_group}} {{controller_id}}"
        ),
        one(
            "Controllers: term", "max by (controller_group) (aerobee_controller_term)", "{{controller_group}}"
        ),
        one("Registered replicas", f"max by (broker) (aerobee_nameserver_replicas{{{C}}})", "{{broker}}"),
        one(
            "Silent brokers",
            f"max by (address) (aerobee_nameserver_broker_silent_seconds{{{C}}})",
            "{{address}}",
            unit="s",
        ),
    ),
)
L = C + ',consumer_group=~"$group"'
SPARK_LAG = Board(
    "aerobee-spark-lag",
    "Aerobee: Spark lag job",
    (
        one(
            "Last run",
            "time() - aerobee_lag_job_sample_timestamp_seconds",
            "ago",
            unit="s",
            kind="stat",
            span=4,
            height=4,
            note="Age of the figures below",
        ),
        one(
            "Groups",
            f"count(aerobee_lag_job_state{{{C}}})",
            "groups",
            kind="stat",
            span=4,
            height=4,
        ),
        one(
            "Groups in each state",
            f"count by (state) (aerobee_lag_job_state{{{C}}})",
            "{{state}}",
            span=16,
            height=4,
        ),
        one("State", f"aerobee_lag_job_state{{{L}}}", "{{consumer_group}} {{state}}", kind="table"),
        one("Lag", f"aerobee_lag_job_messages{{{L}}}", "{{consumer_group}}"),
        one(
            "Lag time",
            f"aerobee_lag_job_oldest_seconds{{{L}}}",
            "{{consumer_group}}",
            unit="s",
        ),
        Panel(
            "In and out",
            (
                (f"aerobee_lag_job_produce_rate{{{L}}}", "{{consumer_group}} in"),
                (f"aerobee_lag_job_consume_rate{{{L}}}", "{{consumer_group}} out"),
            ),
            unit="cps",
        ),
        one(
            "Time to drain",
            f"aerobee_lag_job_drain_seconds{{{L}}}",
            "{{consumer_group}}",
            unit="s",
        ),
        one(
            "Time until unread messages may be deleted",
            f"aerobee_lag_job_retention_left_seconds{{{L}}}",
            "{{consumer_group}}",
            unit="s",
        ),
        Panel(
            "Retries and dead letters",
            (
                (f"aerobee_lag_job_retry_messages{{{L}}}", "{{consumer_group}} retries"),
                (f"aerobee_lag_job_dead_letters{{{L}}}", "{{consumer_group}} dead"),
            ),
        ),
        one(
            "Queues without figures",
            f"aerobee_lag_job_unknown_queues{{{L}}}",
            "{{consumer_group}}",
        ),
    ),
    (("group", 'label_values(aerobee_lag_job_state{cluster="$cluster"}, consumer_group)'),),
)
K = 'group=~"$group"'
KT = K + ',topic=~"$topic"'
CLIENTS = Board(
    "aerobee-clients",
    "Aerobee: clients",
    (
        one(
            "Open clients",
            f"sum by (client) (aerobee_client_open{{{K}}})",
            "{{client}}",
            note="Of applications that register AerobeeCollector. Their series have no label cluster",
        ),
        one(
            "Connections",
            f"sum by (client, group) (aerobee_client_connections{{{K}}})",
            "{{client}} {{group}}",
        ),
        one(
            "In flight",
            f"sum by (client, group) (aerobee_client_in_flight{{{K}}})",
            "{{client}} {{group}}",
            note="Sends that wait for a reply, running handler calls",
        ),
        rates("Sent", "aerobee_client_sent_messages_total", KT, "group, topic"),
        rates("Failed sends", "aerobee_client_send_failures_total", KT, "group, topic, error"),
        rates("Further tries of sends", "aerobee_client_send_retries_total", KT, "group, topic"),
        durations("Duration of sends", "aerobee_client_send_seconds", KT, "group"),
        rates("Received", "aerobee_client_received_messages_total", KT, "group, topic"),
        rates("Consumed", "aerobee_client_consumed_messages_total", KT, "group, topic"),
        durations("Duration of handler calls", "aerobee_client_handler_seconds", KT, "group"),
        rates("Failed handler calls", "aerobee_client_handler_failures_total", KT, "group, topic, error"),
        Panel(
            "Given back",
            (
                (
                    rate("aerobee_client_retried_messages_total", KT, "group, topic"),
                    "{{group}} {{topic}} retries",
                ),
                (rate("aerobee_client_dead_letters_total", KT, "group, topic"), "{{group}} {{topic}} dead"),
            ),
            unit="cps",
        ),
        one(
            "Lag of the queues that the clients own",
            f"sum by (group, topic) (aerobee_client_lag_messages{{{KT}}})",
            "{{group}} {{topic}}",
        ),
        one("Queues", f"sum by (group, topic) (aerobee_client_queues{{{KT}}})", "{{group}} {{topic}}"),
        one(
            "Buffered messages",
            f"sum by (group, topic) (aerobee_client_buffered_messages{{{KT}}})",
            "{{group}} {{topic}}",
        ),
        one(
            "Buffered bytes",
            f"sum by (group, topic) (aerobee_client_buffered_bytes{{{KT}}})",
            "{{group}} {{topic}}",
            unit="bytes",
        ),
    ),
    (
        ("group", "label_values(aerobee_client_open, group)"),
        ("topic", 'label_values({__name__=~"aerobee_client_(sent|received)_messages_total"}, topic)'),
    ),
)
BOARDS = (CLUSTER, BROKER, TOPIC, GROUP, LATER, REPLICATION, SPARK_LAG, CLIENTS)


def dashboard(board: Board) -> dict[str, Any]:
    """The JSON that Grafana provisions (schema 39, Grafana 10 and later)."""
    panels, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(board.panels, start=1):
        if x + panel.span > WIDTH:
            x, y, row = 0, y + row, 0
        panels.append(_panel(number, panel, x, y))
        x, row = x + panel.span, max(row, panel.height)
    variables: list[dict[str, Any]] = [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
            "hide": 0,
        },
        _variable("cluster", "label_values(rocketmq_topic_number, cluster)", is_many=False),
        *(_variable(name, query, is_many=True) for name, query in board.variables),
    ]
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["aerobee"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables},
        "annotations": {"list": []},
        "links": [
            {
                "title": "Aerobee",
                "type": "dashboards",
                "tags": ["aerobee"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": panels,
    }


def _variable(name: str, query: str, *, is_many: bool) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": is_many,
        "includeAll": is_many,
        "allValue": ".*" if is_many else None,
        "current": {"text": "All", "value": "$__all"} if is_many else {},
        "hide": 0,
    }


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": DATASOURCE,
            "expr": query,
            "legendFormat": legend or "__auto",
            "editorMode": "code",
            "range": panel.kind == "timeseries",
            "instant": panel.kind != "timeseries",
            **({"format": "table"} if panel.kind == "table" else {}),
        }
        for place, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.note,
        "datasource": DATASOURCE,
        "gridPos": {"h": panel.height, "w": panel.span, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": targets,
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"{board.uid}.json").write_text(json.dumps(dashboard(board), indent=1) + "\n")


if __name__ == "__main__":
    main()
