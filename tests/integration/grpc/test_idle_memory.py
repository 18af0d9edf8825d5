"""What a waiting ReceiveMessage takes of the broker's memory."""

from __future__ import annotations

import asyncio
import gc
import struct
import tracemalloc

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from aerobee.broker.fastpath.choice import NATIVE, PYTHON, VARIABLE
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import SERVICE
from tests.integration.grpc.test_receive_message import receive_request
from tests.waiting import wait_until

WARM, COUNT = 50, 300
BYTES_MAX = 4_096  # each, with its stream, its pop and its deadline
NATIVE_BYTES = 640  # of it in Rust's memory, which tracemalloc does not see: a stream of 200 bytes, its deadlines, slack of a tree


def requests(client: H2Connection, first: int, count: int) -> bytes:
    """Calls of as many clients, as bytes of one connection."""
    message = receive_request(poll_s=20).SerializeToString()
    framed = b"\x00" + struct.pack(">I", len(message)) + message
    for number in range(first, first + count):
        stream_id = client.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"{SERVICE}ReceiveMessage"),
            (":authority", "broker"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", "60S"),
            ("user-agent", "grpc-python-asyncio/1.85.3"),
            ("x-mq-client-id", f"client-{number}"),
            ("x-mq-request-id", f"{number:032x}"),
            ("x-mq-language", "PYTHON"),
        ]
        client.send_headers(stream_id, headers)
        client.send_data(stream_id, framed, end_stream=True)
    return client.data_to_send()


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
async def test_a_waiting_call_takes_at_most_4_kib(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == NATIVE:
        pytest.importorskip("aerobee_native")
    monkeypatch.setenv(VARIABLE, backend)
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    warm, measured = requests(client, 0, WARM), requests(client, WARM, COUNT)
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        broker = cluster.broker()
        waiting = broker.services.pops._waiting
        host, _, port = broker.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(warm)
        await wait_until(lambda: waiting.count == WARM)
        gc.collect()
        tracemalloc.start()
        try:
            writer.write(measured)
            await wait_until(lambda: waiting.count == WARM + COUNT)
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken / COUNT <= BYTES_MAX - (NATIVE_BYTES if backend == NATIVE else 0)
        writer.close()
        await wait_until(lambda: waiting.count == 0)
