"""What operators see of gRPC: doctor, client lists, metrics, the permissions table."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee.broker.exporter.grpc_families import grpc_families
from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.grpc.proto import messages as pb
from aerobee.ops.diagnosis.doctor import examine
from aerobee.ops.diagnosis.grpc_findings import examine_grpc, refusal_findings
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient
from tests.ports import free_port

PAGE = Path(__file__).resolve().parents[3] / "docs" / "grpc.md"


@pytest.fixture
async def with_port() -> AsyncIterator[tuple[LocalCluster, int]]:
    port = free_port()
    async with LocalCluster(broker_config={"grpcServerPort": port}) as cluster:
        yield cluster, port


async def test_doctor_connects_to_the_grpc_port(with_port: tuple[LocalCluster, int]) -> None:
    cluster, port = with_port
    findings = [each for each in await examine([cluster.nameserver_address]) if each.check == "gRPC port"]
    assert [(each.level, each.detail.split(" ")[0]) for each in findings] == [("ok", f"127.0.0.1:{port}")]
    assert " open calls" in findings[0].detail


async def test_doctor_says_why_the_grpc_port_does_not_answer() -> None:
    port = free_port()
    runtime, config = {"grpcPort": str(port)}, {"grpcServerPort": str(port)}
    (finding,) = await examine_grpc("broker a", "127.0.0.1:10911", runtime, config)
    assert finding.level == "fail"
    assert f"127.0.0.1:{port}" in finding.detail
    (finding,) = await examine_grpc("broker a", "127.0.0.1:10911", {"grpcPort": "0"}, config)
    assert (finding.level, "aerobee[grpc]" in finding.advice) == ("fail", True)
    assert await examine_grpc("broker a", "127.0.0.1:10911", {}, config) == []  # RocketMQ's broker

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    async with server:
        (finding,) = await examine_grpc("broker a", "127.0.0.1:10911", runtime, config)
    assert "not as HTTP/2" in finding.detail


def test_doctor_names_each_bound_at_which_clients_are_refused() -> None:
    findings = refusal_findings("broker a", {"grpcRefused": "grpcCallsMax=12 pings=1"})
    assert [each.detail for each in findings] == [
        "12 refusals since the start: grpcCallsMax",
        "1 refusals since the start: pings",
    ]
    assert all(each.level == "warn" and each.advice for each in findings)


async def test_client_lists_show_the_protocol(cluster: LocalCluster, client: GrpcClient) -> None:
    await cluster.create_topic("orders", queues=1)
    for settings in (pb.Settings(client_type=pb.PUSH_CONSUMER), pb.Settings(client_type=pb.PRODUCER)):
        if settings.client_type == pb.PRODUCER:
            settings.publishing.topics.add().name = "orders"
        else:
            settings.subscription.group.name = "readers"
            settings.subscription.subscriptions.add().topic.name = "orders"
        stream = client.telemetry()
        await stream.write(pb.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == pb.OK
    async with cluster.admin() as admin, cluster.push_consumer("readers", ["orders"]):
        members = (await admin.consumer_connections("readers")).connections
        assert sorted(each.protocol for each in members) == ["grpc", "remoting"]
        producers = await admin.all_producers(cluster.broker().address)
        assert [each.protocol for each in producers if each.group == "orders"] == ["grpc"]


def test_metrics_count_calls_and_refusals() -> None:
    traffic = GrpcTraffic()
    traffic.connection_count, traffic.call_count = 2, 3
    traffic.calls["SendMessage", "OK"] = 5
    traffic.refused["pings"] = 1
    pages = {family.name: list(family.samples) for family in grpc_families(traffic, 'node_id="a"')}
    assert pages["aerobee_grpc_calls"] == [('node_id="a"', 3)]
    assert pages["aerobee_grpc_calls_total"] == [('node_id="a",rpc="SendMessage",status="OK"', 5)]
    assert pages["aerobee_grpc_refused_total"] == [('node_id="a",bound="pings"', 1)]


def test_the_permissions_table_has_each_served_rpc() -> None:
    text = PAGE.read_text()
    served = set(re.findall(r"^\| (\w+) \| [\w ]+ \| yes \|$", text, re.MULTILINE))
    needs = text.partition("| RPC | needs |")[2].partition("\n\n")[0]
    assert served
    assert served <= set(re.findall(r"\w+", needs))
