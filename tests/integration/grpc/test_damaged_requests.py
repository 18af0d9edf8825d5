"""Requests of random fields and damaged bytes to each RPC: a status for each, and no internal error."""

from __future__ import annotations

import contextlib
import logging
import random
from typing import Any

import grpc
import pytest

from aerobee.grpc.proto import messages as pb
from aerobee.grpc.proto.messages import DESCRIPTOR
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import SERVICE, GrpcClient

ROUNDS = 40
CODES = (
    grpc.StatusCode.OK,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
TEXTS = (
    "",
    " ",
    "orders",
    "readers",
    "a b",
    "%RETRY%readers",
    "\x01",
    "x" * 300,
    "CID_RMQ_SYS_x",
    "TBW102",
    "é" * 40,
)
NUMBERS = (0, 1, -1, 2, 3, 32, 2**31 - 1, -(2**31))
LONGS = (*NUMBERS, 2**63 - 1, -(2**63), 253_402_300_800, 1_700_000_000)


def filled(message: Any, rng: random.Random, depth: int = 0) -> Any:
    """The message with random fields."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3 or depth > 4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update({rng.choice(TEXTS): rng.choice(TEXTS)})
        elif field.message_type is not None and field.is_repeated:
            for _ in range(rng.randint(0, 2)):
                filled(getattr(message, field.name).add(), rng, depth + 1)
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            filled(inner, rng, depth + 1)
        else:
            value = scalar(field, rng)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
    return message


def scalar(field: Any, rng: random.Random) -> Any:
    kinds = {
        field.CPPTYPE_STRING: lambda: (
            rng.choice(TEXTS) if field.type == field.TYPE_STRING else rng.randbytes(rng.randint(0, 50))
        ),
        field.CPPTYPE_INT32: lambda: rng.choice(NUMBERS),
        field.CPPTYPE_INT64: lambda: rng.choice(LONGS),
        field.CPPTYPE_BOOL: lambda: rng.random() < 0.5,
        field.CPPTYPE_FLOAT: lambda: rng.choice((0.0, -1.0, float("nan"), float("inf"))),
        field.CPPTYPE_ENUM: lambda: rng.choice((0, 1, 2, 3, 99)),
    }
    return kinds[field.cpp_type]()


def damaged(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data or b"\0")
    for _ in range(rng.choice((0, 0, 1, 3))):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


@pytest.mark.parametrize(
    "name", sorted(method.name for method in DESCRIPTOR.services_by_name["MessagingService"].methods)
)
async def test_every_request_has_an_answer(
    cluster: LocalCluster, client: GrpcClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create_topic("orders", queues=1)
    rng = random.Random(name)
    kind = pb.TelemetryCommand if name == "Telemetry" else getattr(pb, f"{name}Request")
    call = client.channel.stream_stream(SERVICE + name)
    for _ in range(ROUNDS):
        request = filled(kind(), rng)
        if name in ("ReceiveMessage", "PullMessage"):
            request.long_polling_timeout.Clear()
        data = damaged(request.SerializeToString(), rng)
        one = call(iter((data,)), metadata=client._metadata(), timeout=1)
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in one:
                pass
        assert await one.code() in CODES, await one.details()
    assert [record for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR] == []
    found = await client("QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name="orders")))
    assert found.status.code == pb.OK
