"""A foreign gRPC client (grpcio) for tests, with the messages of aerobee.grpc.proto."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from aerobee.grpc.proto import messages as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"


class GrpcClient:
    """One channel, and one connection. Call an RPC by its name: `await client("SendMessage", request)`."""

    def __init__(self, address: str, client_id: str = "client-1", **metadata: str) -> None:
        self.address = address
        self.metadata = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON", **metadata}
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),  # a connection for each channel
        ]
        self.channel = grpc.aio.insecure_channel(address, options=options)

    async def __aenter__(self) -> GrpcClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name.replace("_", "-"), value) for name, value in self.metadata.items() if value is not None
        )

    async def __call__(self, name: str, request: Any, timeout: float | None = 10.0) -> Any:
        response = getattr(pb, f"{name}Response")
        call = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return await call(request, metadata=self._metadata(), timeout=timeout)

    async def stream(self, name: str, request: Any, timeout: float | None = 10.0) -> list[Any]:
        """All responses of a call with a stream of responses."""
        response = getattr(pb, f"{name}Response")
        call = self.channel.unary_stream(
            SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return [each async for each in call(request, metadata=self._metadata(), timeout=timeout)]

    def telemetry(self, timeout: float | None = None) -> Any:
        """An open Telemetry call: write() and read() commands."""
        call = self.channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        return call(metadata=self._metadata(), timeout=timeout)

    def endpoints(self) -> Any:
        """The access point as a client names it."""
        host, _, port = self.address.rpartition(":")
        return pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])


def message(
    topic: str, body: bytes = b"hello", message_id: str = "0102FC0000000114FA0B11B93E00000000"
) -> Any:
    """A NORMAL message."""
    system = pb.SystemProperties(message_id=message_id, message_type=pb.NORMAL, body_encoding=pb.IDENTITY)
    return pb.Message(topic=pb.Resource(name=topic), system_properties=system, body=body)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
