"""Damaged frames by the hundred thousand against a nameserver, a broker and a client, in one process.

    python tests/survival/hostile_frames.py [--role broker|nameserver|client|all] [--count 1000000] [--seed N]

Captured frames of RocketMQ are changed (frame_mutator.py) and given to connections of the real servers, as the event
loop would: whole, in pieces, several together. Whatever comes back, the following must hold:

- no exception reaches the event loop or the log as unhandled, and nothing is logged with a traceback;
- a peer that behaves is served all the while, in order, every message it sends;
- the memory of the process does not grow with the number of frames.

Ends with status 1 when there was a fault, and prints each kind once with the frame before it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from frame_mutator import FrameMutator  # noqa: E402
from process_figures import look_at  # noqa: E402

from aerobee.client.admin.admin import Admin  # noqa: E402
from aerobee.client.base.config import AdminConfig, ClientConfig, ConsumerConfig  # noqa: E402
from aerobee.client.consumer.push_consumer import PushConsumer  # noqa: E402
from aerobee.client.producer.producer import Producer  # noqa: E402
from aerobee.errors import AerobeeError  # noqa: E402
from aerobee.message import Message, MessageQueue  # noqa: E402
from aerobee.network import AsyncioNetwork, NetworkServer  # noqa: E402
from aerobee.remoting.command import RemotingCommand  # noqa: E402
from aerobee.remoting.connection import Connection  # noqa: E402
from aerobee.remoting.frame import decode_frame  # noqa: E402
from aerobee.testing.local_cluster import LocalCluster  # noqa: E402
from tests.fakes import FakeTransport  # noqa: E402

FRAMES_PER_CLUSTER = 25_000  # damaged requests create topics and groups; a new cluster begins without them
FRAMES_PER_CHECK = 500
FRAMES_PER_CONNECTION = 40
MEMORY_GROWTH_MAX_BYTES = 160 << 20
CALL_TIMEOUT_S = 120.0
CLIENT_TIMEOUT_S = 0.05  # for what a damaged answer leaves unanswered
CALLS_PER_CLIENT = 200
ROLES = ("nameserver", "broker", "client")


class Fault(Exception):
    """Something was not handled."""


class TappedNetwork(AsyncioNetwork):
    """Keeps what makes a server's connections, by port."""

    def __init__(self) -> None:
        self.factories: dict[int, Callable[[], asyncio.BaseProtocol]] = {}

    async def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> NetworkServer:
        server = await super().create_server(factory, host, port)
        self.factories[server.address[1]] = factory
        return server


class FaultLog(logging.Handler):
    """Collects what is logged with a traceback, or as an error: each kind once, with the frame before it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.faults: dict[str, str] = {}  # the last lines of the traceback: all of it
        self.frame = b""  # the one that was given last

    def emit(self, record: logging.LogRecord) -> None:
        self.add(logging.Formatter("%(name)s: %(message)s").format(record))

    def add(self, text: str) -> None:
        """Note a fault. Raises nothing: it is called from where exceptions are lost."""
        kind = "\n".join(text.splitlines()[-3:])
        self.faults.setdefault(kind, f"{text}\nafter frame {self.frame[:1500]!r}")


async def attack_server(role: str, mutator: FrameMutator, count: int, faults: FaultLog) -> None:
    """Give `count` damaged frames to new clusters, one after the other. Raises Fault."""
    sent = 0
    while sent < count:
        network = TappedNetwork()
        with tempfile.TemporaryDirectory(prefix="aerobee-hostile-") as directory:
            async with LocalCluster(directory=directory, network=network) as cluster:
                address = cluster.broker_addresses[0] if role == "broker" else cluster.nameserver_addresses[0]
                port = int(address.rpartition(":")[2])
                part = min(FRAMES_PER_CLUSTER, count - sent)
                await _attack(network.factories[port], cluster, role, mutator, part, faults)
                sent += part
        print(
            f"{role}: {sent} of {count}, {look_at(os.getpid()).anonymous_bytes >> 20} MiB",
            file=sys.stderr,
            flush=True,
        )


async def _attack(
    factory: Callable[[], asyncio.BaseProtocol],
    cluster: LocalCluster,
    role: str,
    mutator: FrameMutator,
    count: int,
    faults: FaultLog,
) -> None:
    rng = mutator.rng
    async with cluster.producer() as producer:
        connection, transport = _connect(factory)
        left = FRAMES_PER_CONNECTION
        for number in range(count):
            data = mutator.next()
            if transport.is_closed or not left or not connection.is_open:
                transport.close()
                connection, transport = _connect(factory)
                left = FRAMES_PER_CONNECTION
            # A length that is not the frame's makes what follows part of it: not for long, it would reach no handler.
            left = left - 1 if int.from_bytes(data[:4], "big") == len(data) - 4 else rng.choice((0, 0, 0, 2))
            faults.frame = data
            for piece in filter(None, _pieces(rng, data)):
                if connection.is_open:
                    _feed(connection, piece, data)
            if number % 16 == 0:
                await asyncio.sleep(0)
            if number % FRAMES_PER_CHECK == FRAMES_PER_CHECK - 1:
                await _check_good_peer(producer, number)
        transport.close()


def _connect(factory: Callable[[], asyncio.BaseProtocol]) -> tuple[Connection, FakeTransport]:
    connection = factory()
    assert isinstance(connection, Connection)
    transport = FakeTransport(lose=connection.connection_lost)
    connection.connection_made(transport)
    return connection, transport


def _feed(connection: Connection, piece: bytes, data: bytes) -> None:
    try:
        connection.data_received(piece)
    except Exception as error:
        raise Fault(f"data_received raised {type(error).__name__}: {error}\nframe {data[:2000]!r}") from error


def _pieces(rng: random.Random, data: bytes) -> list[bytes]:
    if rng.random() < 0.8 or len(data) < 2:
        return [data]
    at = rng.randrange(1, len(data))
    return [data[:at], data[at:]]


async def _check_good_peer(producer: Any, number: int) -> None:
    """A well-behaved producer sends to a separate topic; refusals that damaged admin requests caused are answers."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await producer.send(Message("well-behaved", b"%d" % number))
    except AerobeeError:
        return  # a damaged request may have closed the broker for writing or deleted the topic: that is an answer
    except TimeoutError as error:
        raise Fault(f"a well-behaved producer got no answer for {CALL_TIMEOUT_S} s") from error


class HostileNetwork(AsyncioNetwork):
    """Every connection leads to a peer that answers each request with damage, and sends more of it unasked."""

    def __init__(self, replies: FrameMutator, requests: FrameMutator) -> None:
        self.sent = 0
        self._replies = replies
        self._requests = requests

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> None:
        connection = factory()
        assert isinstance(connection, Connection)
        loop = asyncio.get_running_loop()

        def answer(data: bytes) -> None:
            at = 0
            while at + 8 <= len(data):
                size = 4 + int.from_bytes(data[at : at + 4], "big")
                request = decode_frame(data[at : at + size])
                at += size
                for frame in self._answers(request):
                    loop.call_soon(self._give, connection, frame)

        transport = FakeTransport(on_write=answer, lose=connection.connection_lost)
        connection.connection_made(transport)

    def _answers(self, request: RemotingCommand) -> Iterator[bytes]:
        if request.is_response:
            return
        rng = self._replies.rng
        yield self._replies.next_reply(request.code, request.opaque)
        for _ in range(rng.choice((0, 8, 64))):
            yield self._requests.next() if rng.random() < 0.7 else self._replies.next()

    def _give(self, connection: Connection, frame: bytes) -> None:
        self.sent += 1
        if connection.is_open and frame:
            _feed(connection, frame, frame)


async def attack_client(mutator: FrameMutator, count: int, faults: FaultLog) -> None:
    """Clients of every kind whose peers answer with damage. Raises Fault."""
    rng = mutator.rng
    requests = FrameMutator(rng)
    sent = 0
    config = ClientConfig(client_ip="127.0.0.1", request_timeout_s=CLIENT_TIMEOUT_S)
    while sent < count:
        network = HostileNetwork(mutator, requests)
        common: dict[str, Any] = {"network": network, "client": config}
        async with contextlib.AsyncExitStack() as stack:
            producer = Producer("127.0.0.1:9876", **common)
            consumer = PushConsumer(
                "127.0.0.1:9876",
                "g",
                subscriptions={"t": "*"},
                handler=lambda message: None,
                config=ConsumerConfig(rebalance_s=0.05, drain_s=0.1, pull_pause_after_error_s=0.01),
                **common,
            )
            admin = Admin("127.0.0.1:9876", config=AdminConfig(request_timeout_s=CLIENT_TIMEOUT_S), **common)
            for part in (producer, consumer, admin):
                with contextlib.suppress(AerobeeError, TimeoutError):
                    await stack.enter_async_context(part)
            for _ in range(CALLS_PER_CLIENT):
                await asyncio.gather(*(_call(call) for call in _calls(rng, producer, admin)))
                if sent + network.sent >= count:
                    break
        sent += network.sent
        print(
            f"client: {sent} of {count}, {look_at(os.getpid()).anonymous_bytes >> 20} MiB",
            file=sys.stderr,
            flush=True,
        )


def _calls(rng: random.Random, producer: Producer, admin: Admin) -> Iterator[Coroutine[Any, Any, Any]]:
    for _ in range(8):
        yield producer.send(Message("t", b"x"), timeout_s=CLIENT_TIMEOUT_S)
    yield producer.send_batch([Message("t", b"x"), Message("t", b"y")], timeout_s=CLIENT_TIMEOUT_S)
    yield admin.topic_route("t")
    yield admin.topics()
    yield admin.brokers()
    yield admin.groups()
    yield admin.consumer_progress("g")
    yield admin.topic_stats("t")
    yield admin.topic_config("t")
    yield admin.messages_by_key("t", "k")
    yield admin.broker_runtime("127.0.0.1:10911")
    yield admin.broker_config("127.0.0.1:10911")
    yield admin.message_at(MessageQueue("t", "broker-a", 0), rng.randrange(5))
    yield admin.consumer_connections("g")
    yield admin.kv_list("n")


async def _call(call: Coroutine[Any, Any, Any]) -> None:
    """A damaged answer is an AerobeeError for the caller, nothing else."""
    try:
        await call
    except AerobeeError:
        return
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        raise Fault(f"a call raised {type(error).__name__}: {error}\n{trace}") from error


async def run(role: str, count: int, seed: int) -> dict[str, object]:
    """One role. Raises Fault; returns figures."""
    faults = FaultLog()
    root = logging.getLogger()
    root.addHandler(faults)
    logging.getLogger("aerobee").setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.add(_describe(context)))
    started = time.monotonic()
    before = look_at(os.getpid()).anonymous_bytes
    try:
        if role == "client":
            await attack_client(FrameMutator(random.Random(seed), replies=True), count, faults)
        else:
            await attack_server(role, FrameMutator(random.Random(seed)), count, faults)
    finally:
        root.removeHandler(faults)
    if faults.faults:
        raise Fault("\n\n".join(faults.faults.values()))
    grown = look_at(os.getpid()).anonymous_bytes - before
    if grown > MEMORY_GROWTH_MAX_BYTES:
        raise Fault(f"memory grew by {grown >> 20} MiB")
    return {
        "role": role,
        "frames": count,
        "faults": 0,
        "us_per_frame": round((time.monotonic() - started) / count * 1e6),
        "memory_growth_mib": round(grown / 2**20, 1),
    }


def _describe(context: dict[str, Any]) -> str:
    error = context.get("exception")
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    return f"event loop: {context.get('message')}\n{trace}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=(*ROLES, "all"), default="all")
    parser.add_argument("--count", type=int, default=1_000_000, help="frames a role")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    try:
        for role in ROLES if options.role == "all" else (options.role,):
            print(json.dumps(asyncio.run(run(role, options.count, options.seed))), flush=True)
    except Fault as fault:
        print(f"FAULT (seed {options.seed}): {fault}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
