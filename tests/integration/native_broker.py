"""A broker on native sockets, with what tests send to it and read from it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.testing import LocalCluster

TOPIC, GROUP, QUEUES = "sockets", "sockets-group", 4
WITHIN_S = 120.0
# How long a send may have waited is not what is tried here, on a machine as busy as it may be.
PATIENT = {"wait_time_mills_in_send_queue": 120_000}


def send(
    opaque: int, *, size: int = 100, flag: int = 0, binary: bool = False, queue: int | None = None
) -> bytes:
    text = f"UNIQ_KEY\x01{opaque:032X}\x02WAIT\x01true\x02"
    ext = {
        "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(opaque % QUEUES if queue is None else queue), "f": "0",
        "g": "1795219623949", "h": "0", "i": text, "j": "0", "k": "false", "l": "0", "m": "false", "n": "broker-a",
    }  # fmt: skip
    kind = SerializeType.ROCKETMQ if binary else SerializeType.JSON
    code = RequestCode.SEND_MESSAGE_V2.value
    return encode_frame(
        RemotingCommand(code, ext, bytes(size), opaque=opaque, flag=flag, serialize_type=kind)
    )


def runtime_info(opaque: int) -> bytes:
    """A request that is never the fast path's."""
    return encode_frame(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO.value, opaque=opaque))


class Peer:
    """A connection that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def replies(self, count: int) -> list[RemotingCommand]:
        found = []
        async with asyncio.timeout(WITHIN_S):
            for _ in range(count):
                head = await self.reader.readexactly(4)
                found.append(decode_frame(head + await self.reader.readexactly(struct.unpack(">I", head)[0])))
        return found

    async def is_closed(self) -> bool:
        async with asyncio.timeout(WITHIN_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def peer_of(broker: Broker, *, limit: int = 1 << 16) -> AsyncIterator[Peer]:
    host, _, port = broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=limit)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def serving(**store_config: Any) -> AsyncIterator[Broker]:
    async with LocalCluster(store_config=store_config, broker_config=PATIENT) as cluster:
        await cluster.create_topic(TOPIC, QUEUES)
        async with cluster.admin() as admin:
            await admin.create_group(GROUP)
        broker = cluster.broker()
        assert broker.backend_choice.make_sockets is not None
        yield broker


def stored(broker: Broker) -> int:
    return sum(broker.store.max_offset(TOPIC, queue) for queue in range(QUEUES))
