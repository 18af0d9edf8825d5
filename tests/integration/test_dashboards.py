"""deploy/grafana: the files are what generate.py writes, they have what Grafana's schema asks for, and each panel's query returns
data from a real Prometheus that scrapes a cluster at work. With them the alerts: a rule on a name without exporter never fires.
"""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import time

import yaml

from aerobee.client.base.metering import Meters
from aerobee.contrib.prometheus import AerobeeCollector
from aerobee.spark.lag_metrics import metrics_text
from tests.integration.dashboards import ABSENT, DEPLOY, FILES, WAIT_S, boards
from tests.integration.prometheus import (
    LAG_JOB_ROW,
    asked,
    client_metrics,
    names_in,
    prometheus,
    serving,
    world,
)

# What an existing dashboard for RocketMQ 5 asks for: names, and labels by which it sums them or picks some. Every series has COMMON.
COMMON = "cluster node_type node_id"
STORAGE = "storage_type storage_medium"
LAG = "topic consumer_group is_retry is_system"
ROCKETMQ = {
    "rocketmq_processor_watermark": "processor",
    "rocketmq_broker_permission": "",
    "rocketmq_topic_number": "",
    "rocketmq_consumer_group_number": "",
    "rocketmq_messages_in_total": "topic message_type is_system",
    "rocketmq_messages_out_total": "topic consumer_group is_system",
    "rocketmq_throughput_in_total": "topic message_type is_system",
    "rocketmq_throughput_out_total": "topic consumer_group is_system",
    "rocketmq_message_size_bucket": "topic message_type is_system le",
    "rocketmq_message_size_sum": "topic message_type is_system",
    "rocketmq_message_size_count": "topic message_type is_system",
    "rocketmq_rpc_latency_bucket": "protocol_type request_code response_code is_long_polling result le",
    "rocketmq_rpc_latency_sum": "protocol_type request_code response_code is_long_polling result",
    "rocketmq_rpc_latency_count": "protocol_type request_code response_code is_long_polling result",
    "rocketmq_producer_connections": "language version protocol_type",
    "rocketmq_consumer_connections": "consumer_group language version consume_mode protocol_type is_system",
    "rocketmq_consumer_lag_messages": LAG,
    "rocketmq_consumer_lag_latency": LAG,
    "rocketmq_consumer_inflight_messages": LAG,
    "rocketmq_consumer_queueing_latency": LAG,
    "rocketmq_consumer_ready_messages": LAG,
    "rocketmq_send_to_dlq_messages_total": "topic consumer_group is_system",
    "rocketmq_topic_create_execution_time_bucket": "invocation_status is_system le",
    "rocketmq_consumer_group_create_execution_time_bucket": "invocation_status is_system le",
    # RocketMQ has the topic, too:
    "rocketmq_commit_messages_total": "",
    "rocketmq_rollback_messages_total": "",
    "rocketmq_half_messages": "",
    "rocketmq_finish_message_latency_bucket": "le",
    "rocketmq_storage_size": STORAGE,
    "rocketmq_storage_flush_behind_bytes": STORAGE,
    "rocketmq_storage_dispatch_behind_bytes": STORAGE,
    "rocketmq_storage_message_reserve_time": STORAGE,
    "rocketmq_pop_revive_lag": "queue_id",
    "rocketmq_pop_revive_latency": "queue_id",
    # RocketMQ has the topic, the group, or labels of the storage, too:
    "rocketmq_timing_messages": "",
    "rocketmq_timer_enqueue_lag": "",
    "rocketmq_timer_enqueue_latency": "",
    "rocketmq_timer_dequeue_lag": "",
    "rocketmq_timer_dequeue_latency": "",
    "rocketmq_timer_message_snapshot": "timer_bound_s",
    "rocketmq_delay_message_latency_bucket": "le",
    "rocketmq_timer_enqueue_total": "",
    "rocketmq_timer_dequeue_total": "",
    "rocketmq_pop_revive_in_message_total": "",
    "rocketmq_pop_revive_out_message_total": "",
    "rocketmq_pop_revive_retry_messages_total": "",
}


def queries() -> list[tuple[str, str]]:
    return [
        (f"{board['title']}: {panel['title']}", target["expr"])
        for board in boards()
        for panel in board["panels"]
        for target in panel["targets"]
    ]


def test_the_files_are_what_the_generator_writes() -> None:
    generate = runpy.run_path(str(DEPLOY / "grafana" / "generate.py"))
    written = {
        f"{board.uid}.json": json.dumps(generate["dashboard"](board), indent=1) + "\n"
        for board in generate["BOARDS"]
    }
    assert {path.name: path.read_text() for path in FILES} == written


def test_dashboards_have_what_grafana_asks_for() -> None:
    assert len({board["uid"] for board in boards()}) == len(FILES) >= 7
    for board in boards():
        assert {
            "uid",
            "title",
            "schemaVersion",
            "version",
            "panels",
            "templating",
            "time",
            "annotations",
        } <= board.keys()
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", board["uid"])
        variables = {variable["name"] for variable in board["templating"]["list"]}
        assert {"datasource", "cluster"} <= variables
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            assert {
                "id",
                "type",
                "title",
                "gridPos",
                "datasource",
                "targets",
                "fieldConfig",
                "options",
            } <= panel.keys()
            grid = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(grid["x"], grid["x"] + grid["w"])
                for y in range(grid["y"], grid["y"] + grid["h"])
            }
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, f"{panel['title']} lies over another panel"
            taken |= cells
            for target in panel["targets"]:
                assert {"refId", "expr", "datasource", "legendFormat"} <= target.keys()
                used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
                assert used <= variables, panel["title"]


def test_each_metric_of_clients_is_drawn() -> None:
    drawn = " ".join(query for _, query in queries())
    families = {family.name for family in AerobeeCollector(Meters()).describe()}
    assert {name for name in families if name not in drawn} == set()
    assert len(families) >= 17


def test_the_example_for_keda_asks_for_the_lag_of_one_group() -> None:
    document = yaml.safe_load((DEPLOY / "keda" / "scaledobject.yaml").read_text())
    assert document["kind"] == "ScaledObject"
    assert all("consumer_group=" in trigger["metadata"]["query"] for trigger in document["spec"]["triggers"])


def filled(query: str) -> str:
    query = query.replace("$__rate_interval", "10s").replace('"$cluster"', '"DefaultCluster"')
    return re.sub(r'=~"\$\w+"', '=~".*"', query)


async def test_every_panel_and_every_rule_finds_its_series() -> None:
    rules = DEPLOY / "prometheus"
    names: set[str] = set()
    others = metrics_text([LAG_JOB_ROW], round(time.time() * 1000)) + client_metrics()
    async with (
        serving(others) as others_address,
        world() as running,
        prometheus({**running.targets, "others": others_address}, rules) as address,
    ):
        left = dict.fromkeys(queries())
        deadline = time.monotonic() + WAIT_S
        while left:
            for title, query in list(left):
                if await asked(address, filled(query)):
                    del left[title, query]
            names |= names_in(await running.pages()) | names_in(others)
            missing = [
                f"{title}: {query}" for title, query in left if not any(name in query for name in ABSENT)
            ]
            if not missing:
                break
            assert time.monotonic() < deadline, "without data:\n" + "\n".join(missing)
            await asyncio.sleep(1)
        for name, labels in ROCKETMQ.items():
            has_labels = ",".join(f'{label}!=""' for label in f"{COMMON} {labels}".split())
            assert await asked(address, f"{name}{{{has_labels}}}"), (
                f"no series of {name} with labels {labels}"
            )
        assert await asked(address, 'ALERTS{alertname="AerobeeDeadLetters"}')
        assert await asked(address, 'up{job=~"aerobee.*"} == 0') == []
    assert ROCKETMQ.keys() <= names
    known = names | ABSENT
    for file in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((rules / file).read_text())["groups"]:
            for rule in group["rules"]:
                used = set(re.findall(r"(?<![:\w])(?:aerobee|rocketmq)_\w+(?!\w*:)", rule["expr"]))
                assert used <= known, rule
