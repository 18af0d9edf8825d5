"""What a plain send costs a broker with every kind of message pending, compared with one without any of them.

    python bench/kinds/ordinary.py [--rounds 300] [--backends native,python]

Both brokers run in this process. The one with kinds holds an open transaction, messages that wait for a level and for a timer,
and a POP check point; of the other one sends and pulls alone are served on the fast path. The same
bursts of 64 sends of 128 bytes go to FastPath.burst of both, interleaved. CPU microseconds a message, the least of the rounds:
other work on the machine can only add to it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from aerobee.broker.fastpath.choice import VARIABLE
from aerobee.client import Producer, SimpleConsumer, TransactionProducer, TransactionState
from aerobee.message import Message
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame
from aerobee.testing import LocalCluster
from bench import results_file

TOPIC = "ordinary"
QUEUES = 4
BURST = 64
BURSTS_PER_ROUND = 10
PEER = ("127.0.0.1", 40_000)


class Sink:
    """Stands for a connection; what is written to it is counted."""

    burst_note: Any = None
    host_port = PEER
    address = "127.0.0.1:40000"
    congested = False

    def __init__(self) -> None:
        self.byte_count = 0

    def write(self, data: bytes) -> None:
        self.byte_count += len(data)


def burst_of_sends(first: int) -> bytes:
    frames = []
    for number in range(first, first + BURST):
        ext = {
            "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
            "g": str(int(time.time() * 1000)), "h": "0",
            "i": f"UNIQ_KEY\x017F00000100002A9F{number:016X}\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        frames.append(encode_frame(RemotingCommand(310, ext, b"x" * 128, opaque=number)))
    return b"".join(frames)


async def use_every_kind(cluster: LocalCluster) -> None:
    """Leave something of each kind waiting at the broker."""
    address = cluster.nameserver_address
    async with (
        TransactionProducer(address, "kinds", checker=lambda _: TransactionState.UNKNOWN) as producer,
        producer.transaction(Message("kinds", b"open")) as transaction,
    ):
        transaction.leave_open()
    async with Producer(address) as producer:
        await producer.send(Message("kinds", b"level", delay_level=18))
        await producer.send(Message("kinds", b"timer", deliver_after=3600))
        await producer.send(Message("kinds", b"popped"))
    async with SimpleConsumer(address, "kinds-group", subscriptions={"kinds": "*"}) as consumer:
        await consumer.receive(invisible_s=300, wait_s=5)


async def measure(backend: str, rounds: int) -> dict[str, float]:
    os.environ[VARIABLE] = backend
    least = {"with": float("inf"), "without": float("inf")}
    async with LocalCluster() as cluster, LocalCluster() as plain:
        for each in (cluster, plain):
            await each.create_topic(TOPIC, QUEUES)
        await cluster.create_topic("kinds", QUEUES)
        await use_every_kind(cluster)
        paths = {"with": cluster.broker().fast_path, "without": plain.broker().fast_path}
        assert paths["without"] is not None
        paths["without"]._delayed = paths["without"]._transactions = None
        paths["without"]._settings_changed()
        sink, number = Sink(), 0
        for turn in range(rounds + 2):
            # A loop that was held up counts as overload for a moment, in which nothing is ordinary.
            while any(each.broker().overload.reason for each in (cluster, plain)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            bursts = [burst_of_sends(number + n * BURST) for n in range(BURSTS_PER_ROUND)]
            number += BURST * BURSTS_PER_ROUND
            for name, one in sorted(
                paths.items(), reverse=bool(turn % 2)
            ):  # the first one meets a colder cache
                began = time.process_time()
                for data in bursts:
                    if one.burst(sink, data, 0) != len(data):  # type: ignore[union-attr, arg-type]
                        raise SystemExit(f"the {backend} fast path left a plain send to the handlers")
                spent = time.process_time() - began
                least[name] = min(least[name], spent / (BURST * BURSTS_PER_ROUND) * 1e6)
            await asyncio.sleep(0.01)  # the brokers' own work
        first, _ = struct.unpack_from(">II", bursts[0])
        assert sink.byte_count > first
    return least


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--backends", default="native,python")
    options = parser.parse_args()
    servers = {"native": "aerobee", "python": "aerobee-python"}
    found = {
        servers[backend]: asyncio.run(measure(backend, options.rounds))
        for backend in options.backends.split(",")
    }
    for server, least in found.items():
        print(
            f"{server}: {least['with']:.3f} us a send with every kind, {least['without']:.3f} without: "
            f"{least['with'] / least['without']:.3f} x"
        )
    row = results_file.kind_row(
        "64 in a burst, 128 B",
        {server: least["with"] for server, least in found.items()},
        goal="1 x",
        base={server: least["without"] for server, least in found.items()},
        against="a broker without the kinds",
    )
    results_file.write_kind("ordinary", "A plain send with every kind pending, no sockets", [row], found)


if __name__ == "__main__":
    main()
