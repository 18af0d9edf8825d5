"""Requests of random fields and damaged bytes through a proxy: a status for each, and no internal error."""

from __future__ import annotations

import contextlib
import logging
import random

import grpc
import pytest

from aerobee.grpc.proto import messages as pb
from aerobee.proxy.config import ProxyConfig
from aerobee.proxy.server import ProxyServer
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import SERVICE, GrpcClient
from tests.integration.grpc.test_damaged_requests import CODES, damaged, filled

ROUNDS = 30
NAMES = (
    "QueryRoute", "QueryAssignment", "SendMessage", "ReceiveMessage", "AckMessage", "ChangeInvisibleDuration", "Telemetry",
    "ForwardMessageToDeadLetterQueue", "Heartbeat", "NotifyClientTermination", "EndTransaction", "RecallMessage",
)  # fmt: skip


async def test_every_request_has_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        proxy = ProxyServer(ProxyConfig(nameservers=cluster.nameserver_address, host="127.0.0.1", port=0))
        await proxy.start()
        try:
            async with GrpcClient(proxy.address) as client:
                for name in NAMES:
                    await send_damaged(client, name)
                found = await client("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
                assert found.status.code == pb.OK
        finally:
            await proxy.stop()
    assert [record for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR] == []


async def send_damaged(client: GrpcClient, name: str) -> None:
    """Several requests of one RPC."""
    rng = random.Random(name)
    kind = pb.TelemetryCommand if name == "Telemetry" else getattr(pb, f"{name}Request")
    call = client.channel.stream_stream(SERVICE + name)
    for _ in range(ROUNDS):
        request = filled(kind(), rng)
        if name == "ReceiveMessage":
            request.long_polling_timeout.Clear()
        one = call(iter((damaged(request.SerializeToString(), rng),)), metadata=client._metadata(), timeout=1)
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in one:
                pass
        assert await one.code() in CODES, await one.details()
