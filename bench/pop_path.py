"""CPU of POP's requests without sockets: what is Aerobee's own between read and write.

    python bench/pop_path.py [--rounds 5] [--messages 2000] [--backends python,native] [--profile]

A topic of 8 queues is filled, then popped (8 pops a read, 32 or 1 messages each) and acknowledged (one ack a message, 32 a
read), as bench/kinds/pop.py does over sockets. Microseconds of CPU, the least of the rounds: of a pop, of an
acknowledgement, and of what the timer does with their records, a message, when the invisible time expires.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aerobee.broker.fastpath.choice import NATIVE, PYTHON, VARIABLE
from aerobee.clock import SystemClock
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection, Endpoint
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.testing import LocalCluster
from bench.bursts import BATCH_HEAD, PEER, STORE, NoTransport

GROUP = "bench-pop"
QUEUES, POPS, ACKS = 8, 8, 32
INVISIBLE_MS = 3_000
SEND_BATCH, POP_MESSAGE, ACK_MESSAGE = 320, 200050, 200051
SETTLE_PASSES = 3  # of the event loop, after which what a read has left to be done is done


class Replies(NoTransport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data.append(bytes(data))

    def take(self) -> list[RemotingCommand]:
        decoder, found = FrameDecoder(), []
        decoder.feed(b"".join(self.data))
        self.data.clear()
        while (command := decoder.next_frame()) is not None:
            found.append(command)
        return found


def batch(topic: str, queue: int, count: int) -> bytes:
    body = b""
    for number in range(count):
        text = f"UNIQ_KEY\x017F00000100002A9F0001{number:012X}\x02WAIT\x01true\x02".encode()
        size = BATCH_HEAD.size + 128 + 2 + len(text)
        body += BATCH_HEAD.pack(size, 0, 0, 0, 128) + bytes(128) + len(text).to_bytes(2, "big") + text
    ext = {
        "a": "group", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": str(1_700_000_000_000),
        "h": "0", "i": "UNIQ_KEY\x01A\x02WAIT\x01true\x02", "j": "0", "k": "false", "l": "0", "m": "true", "n": "broker-a",
    }  # fmt: skip
    return encode_frame(RemotingCommand(SEND_BATCH, ext, body))


def pop(topic: str, count: int, opaque: int, now_ms: int) -> bytes:
    ext = {
        "consumerGroup": GROUP, "topic": topic, "queueId": "-1", "maxMsgNums": str(count),
        "invisibleTime": str(INVISIBLE_MS), "pollTime": "0", "bornTime": str(now_ms),
        "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    return encode_frame(RemotingCommand(POP_MESSAGE, ext, opaque=opaque))


def acks(topic: str, reply: RemotingCommand) -> list[bytes]:
    """The acknowledgements of what a pop has found."""
    fields = reply.ext or {}
    starts = dict(piece.rsplit(" ", 1) for piece in fields["startOffsetInfo"].split(";"))
    found = []
    for piece in fields["msgOffsetInfo"].split(";"):
        retry, queue, offsets = piece.split(" ")
        for offset in offsets.split(","):
            handle = (
                f"{starts[f'{retry} {queue}']} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} "
                f"{retry} broker-a {queue} {offset}"
            )
            ext = {
                "consumerGroup": GROUP,
                "topic": topic,
                "queueId": queue,
                "extraInfo": handle,
                "offset": offset,
            }
            found.append(encode_frame(RemotingCommand(ACK_MESSAGE, ext, opaque=len(found))))
    return found


class Timed:
    """CPU of this thread, summed up over pieces of work."""

    def __init__(self, connection: Connection, profiler: cProfile.Profile | None) -> None:
        self._connection = connection
        self._profiler = profiler

    async def give(self, data: bytes) -> float:
        """Seconds that a read took, with what follows in the next passes of the loop."""
        if self._profiler is not None:
            self._profiler.enable()
        began = time.thread_time()
        self._connection.data_received(data)
        for _ in range(SETTLE_PASSES):
            await asyncio.sleep(0)
        spent = time.thread_time() - began
        if self._profiler is not None:
            self._profiler.disable()
        return spent


async def measure(name: str, size: int, messages: int, rounds: int, profile: bool) -> tuple[float, ...]:
    """The least of the rounds: us a pop, us an acknowledgement, us a message for the timer."""
    os.environ[VARIABLE] = name
    best = [1e9, 1e9, 1e9]
    profiler = cProfile.Profile() if profile else None
    async with LocalCluster(
        store_config=STORE,
        broker_config={"wait_time_mills_in_send_queue": 1 << 30, "broker_name": "broker-a"},
        clock=SystemClock(),  # that of tests takes a call of Python for each reading
    ) as cluster:
        broker = cluster.broker()
        endpoint = Endpoint(broker.handlers, burst=broker.fast_path.burst)
        replies, connection = Replies(), Connection(endpoint)
        connection.connection_made(replies)
        assert replies.get_extra_info("peername") == PEER
        timed = Timed(connection, profiler)
        for number in range(rounds):
            topic = f"popped-{number}"
            await cluster.create_topic(topic, queues=QUEUES)
            for first in range(0, messages, 32):
                connection.data_received(batch(topic, first // 32 % QUEUES, 32))
            replies.take()
            pops = acked = 0
            spent_pops = spent_acks = 0.0
            while acked < messages:
                now_ms = cluster.clock.now_ms()
                frames = [pop(topic, size, opaque, now_ms) for opaque in range(POPS)]
                spent_pops += await timed.give(b"".join(frames))
                found = [each for each in replies.take() if each.code == 0]
                pops += len(found)
                frames = [frame for each in found for frame in acks(topic, each)]
                for at in range(0, len(frames), ACKS):
                    spent_acks += await timed.give(b"".join(frames[at : at + ACKS]))
                answers = replies.take()
                assert len(answers) == len(frames)
                assert all(each.code == 0 for each in answers), answers[0]
                acked += len(frames)
            began = time.thread_time()
            await asyncio.sleep(INVISIBLE_MS / 1000 + 3)
            spent_deferred = time.thread_time() - began
            for at, figure in enumerate((spent_pops / pops, spent_acks / acked, spent_deferred / acked)):
                best[at] = min(best[at], figure * 1e6)
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    return tuple(best)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=2_048)
    parser.add_argument("--backends", default=f"{PYTHON},{NATIVE}")
    parser.add_argument("--sizes", default="32,1")
    parser.add_argument("--profile", action="store_true", help="print cProfile's view, too")
    options = parser.parse_args()
    print(
        "| backend | messages a pop | us a pop | us an acknowledgement | us a message in the timer |\n|---|---|---|---|---|"
    )
    for name in options.backends.split(","):
        for size in map(int, options.sizes.split(",")):
            figures = asyncio.run(measure(name, size, options.messages, options.rounds, options.profile))
            print(
                f"| {name} | {size} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |", flush=True
            )


if __name__ == "__main__":
    main()
