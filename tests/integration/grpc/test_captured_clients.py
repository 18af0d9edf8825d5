"""What five official clients sent to RocketMQ's proxy, sent again to our broker: the same answers.

The captures hold the producers' and push consumers' first seconds (tests/data/grpc). Each request goes out with the metadata that its
client sent; names of brokers, offsets and texts of statuses are left out of the comparison.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from aerobee.grpc.proto import messages as pb
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient

DATA = Path(__file__).resolve().parents[2] / "data" / "grpc"
CLIENTS = ("go", "java", "node", "py", "rust")
UNARY = ("QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "NotifyClientTermination")
# Its heartbeat overtakes its settings. RocketMQ's proxy refuses it, and no client does anything about that.
REFUSED_BY_ROCKETMQ = {("rust", "Heartbeat")}


def events(client: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / f"client-{client}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def method_of(event: dict[str, Any]) -> str:
    return str(event["m"]).rpartition("/")[2]


def exchanges(client: str) -> Iterator[tuple[str, dict[str, str], Any, Any]]:
    """(RPC, metadata, request, response) of the calls that we send again, in their order."""
    answers = defaultdict(list)
    for event in events(client):
        if event["ev"] == "<-":
            answers[method_of(event)].append(event["msg"])
    metadata: dict[str, dict[str, str]] = {}
    for event in events(client):
        method = method_of(event)
        if event["ev"] == "call":
            metadata[method] = {name: value for name, value in event["md"] if name != "user-agent"}
        elif event["ev"] == "->" and (
            method in UNARY or (method == "Telemetry" and "settings" in event["msg"])
        ):
            yield method, metadata[method], event["msg"], answers[method].pop(0)


def parsed(document: Any, kind: type[Any]) -> Any:
    return json_format.ParseDict(document, kind(), ignore_unknown_fields=False)


def compared(method: str, response: Any) -> Any:
    """What of a response has to be the same."""
    if method == "QueryRoute":
        for queue in response.message_queues:
            queue.broker.name = ""
    elif method == "QueryAssignment":
        for assignment in response.assignments:
            assignment.message_queue.broker.name = ""
    elif method == "SendMessage":
        for entry in response.entries:
            entry.offset = 0
    response.status.message = ""
    return response


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_captured_client_is_answered_as_by_rocketmq(cluster: LocalCluster, name: str) -> None:
    await cluster.create_topic(f"t{name}", queues=4)
    compared_count = 0
    async with GrpcClient(cluster.broker().address) as client:
        streams: dict[str, Any] = {}
        for method, metadata, request, response in exchanges(name):
            client.metadata = metadata
            kind = pb.TelemetryCommand if method == "Telemetry" else getattr(pb, f"{method}Request")
            if method == "Telemetry":
                client_id = metadata["x-mq-client-id"]
                if client_id not in streams:
                    streams[client_id] = client.telemetry()
                stream = streams[client_id]
                await stream.write(parsed(request, kind))
                found, wanted = await stream.read(), parsed(response, pb.TelemetryCommand)
            else:
                found = await client(method, parsed(request, kind))
                wanted = parsed(response, getattr(pb, f"{method}Response"))
            if (name, method) in REFUSED_BY_ROCKETMQ and wanted.status.code != pb.OK:
                assert (wanted.status.code, found.status.code) == (pb.UNRECOGNIZED_CLIENT_TYPE, pb.OK)
                continue
            assert compared(method, found) == compared(method, wanted), method
            compared_count += 1
    assert compared_count >= 5, "this test has to see something"
