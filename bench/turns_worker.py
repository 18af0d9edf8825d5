"""One side of turns.py: runs in either checkout, reads "shape seconds-or-count" lines, answers each with us of CPU a message.

python bench/turns_worker.py fast-path BACKEND
python bench/turns_worker.py client CODEC NAMESERVER TOPIC

And for instructions.py, so many bursts between two calls of libc's that valgrind sees:

python bench/turns_worker.py count BACKEND SHAPE BURSTS
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from bursts import GROUP, STORE, STORED, TOPIC, NoTransport, bursts, properties, send

from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, PushConsumer
from aerobee.clock import SystemClock
from aerobee.message import Message
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection, Endpoint
from aerobee.remoting.frame import encode_frame
from aerobee.testing import LocalCluster

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

# By the names of now and of the version before native code was called a backend.
BACKEND_VARIABLES = ("AEROBEE_FAST_PATH", "AEROBEE_LANE")
COUNT, IN_FLIGHT, BURSTS = 64, 64, 16
BODY = b"x" * 128
SEND, END_TRANSACTION, POP, ACK, ONEWAY = 310, 37, 200050, 200051, 2
POPS = {"pop-32": 32, "pop-1": 1}  # messages a pop, each acknowledged
DELAYS = {"level": "DELAY\x019\x02", "timer": "TIMER_DELAY_MS\x01200000\x02"}
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
# What a shape's figure is: from (amount as it was given) to us a message.
Measure = Callable[[str, float], Awaitable[float]]


class FastPathSide:
    """Bursts through Connection.data_received, its writes into a list."""

    def __init__(self, broker: Any) -> None:
        path = getattr(broker, "fast_path", None) or broker._lane
        self.stats = broker.stats
        self.connection = Connection(Endpoint({}, burst=path.burst))
        transport = NoTransport()
        self.connection.connection_made(transport)
        self._written: list[bytes] = []
        transport.write = self._written.append  # type: ignore[method-assign, assignment]
        self._given: dict[str, list[bytes]] = {}
        self._number = 0

    def serve(self, data: bytes) -> float:
        """Seconds of CPU for one burst."""
        self._written.clear()
        began = time.thread_time()
        self.connection.data_received(data)
        return time.thread_time() - began

    async def measure(self, shape: str, seconds: float) -> float:
        """As Measure: bursts for so long, or one round of frames that need another's reply."""
        await asyncio.sleep(0)
        if shape in DELAYS:
            return self.serve(b"".join(self._frames(DELAYS[shape], 0))) / COUNT * 1e6
        if shape in ("half", "commit"):
            half_s = self.serve(b"".join(self._frames(HALF, 4)))
            commits = b"".join(map(commit_of, self._replies()))
            commit_s = self.serve(commits)
            return (half_s if shape == "half" else commit_s) / COUNT * 1e6
        made, messages = bursts(shape)
        given = self._given.setdefault(shape, made)
        spent, count = 0.0, 0
        while spent < seconds:
            part = given[:BURSTS]
            self._given[shape] = given = given[BURSTS:] + part
            began = time.thread_time()
            for burst in part:
                self.connection.data_received(burst)
            spent += time.thread_time() - began
            count += len(part) * messages
            self._written.clear()
        return spent / count * 1e6

    async def served(self, shape: str, count: int) -> None:
        """So many bursts."""
        if shape in POPS:
            for _ in range(count):
                await self._pop_and_acknowledge(POPS[shape])
            return
        if shape in DELAYS or shape in ("half", "commit"):
            for _ in range(count):
                await self.measure(shape, 0)
            return
        given = self._given[shape] = self._given.get(shape) or bursts(shape)[0]
        for burst in itertools.islice(itertools.cycle(given), count):
            self.connection.data_received(burst)
            self._written.clear()

    async def _pop_and_acknowledge(self, count: int) -> None:
        ext = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": str(count), "invisibleTime": "600000",
            "pollTime": "0", "bornTime": str(int(time.time() * 1000)), "initMode": "0", "expType": "TAG", "exp": "*",
            "order": "false",
        }  # fmt: skip
        self._written.clear()
        self.connection.data_received(encode_frame(RemotingCommand(POP, ext, opaque=1)))
        (found,) = self._replies()
        starts = {share.split()[1]: share.split()[2] for share in found["startOffsetInfo"].split(";")}
        frames, times = [], f"{found['popTime']} {found['invisibleTime']} {found['reviveQid']} 0 broker-a"
        for share in found["msgOffsetInfo"].split(";"):
            _, queue_id, offsets = share.split()
            for offset in offsets.split(","):
                handle = f"{starts[queue_id]} {times} {queue_id} {offset}"
                ack = {
                    "consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id, "extraInfo": handle, "offset": offset,
                }  # fmt: skip
                frames.append(encode_frame(RemotingCommand(ACK, ack, opaque=len(frames))))
        self._written.clear()
        self.connection.data_received(b"".join(frames))
        await asyncio.sleep(0)  # they are answered at the end of the pass
        if len(self._written) == 0:
            raise SystemExit("the acknowledgements were not answered")

    def _frames(self, more: str, sys_flag: int) -> list[bytes]:
        frames = []
        for _ in range(COUNT):
            self._number += 1
            ext = {
                "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(self._number % 4), "f": str(sys_flag),
                "g": str(int(time.time() * 1000)), "h": "0", "i": more + properties((1 << 60) + self._number), "j": "0",
                "k": "false", "m": "false",
            }  # fmt: skip
            frames.append(encode_frame(RemotingCommand(SEND, ext, BODY, opaque=self._number)))
        return frames

    def _replies(self) -> list[dict[str, str]]:
        """The fields of what was answered last."""
        found, at, data = [], 0, b"".join(self._written)
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            header = orjson.loads(data[at + 8 : at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")])
            if header["code"]:
                raise SystemExit(f"refused: {header}")
            found.append(header["extFields"])
            at = end
        return found


def commit_of(half: dict[str, str]) -> bytes:
    """The commit of the half message that was answered so."""
    ext = {
        "topic": TOPIC, "producerGroup": "PG", "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": str(int(half["msgId"][-16:], 16)), "commitOrRollback": "8", "fromTransactionCheck": "false",
        "msgId": half["transactionId"], "transactionId": half["transactionId"], "bname": "broker-a",
    }  # fmt: skip
    return encode_frame(RemotingCommand(END_TRANSACTION, ext, opaque=1, flag=ONEWAY))


@contextlib.asynccontextmanager
async def opened(backend: str, stored: int = STORED) -> AsyncIterator[FastPathSide]:
    """A broker with so many stored messages."""
    for name in BACKEND_VARIABLES:
        os.environ[name] = backend
    busy = {"wait_time_mills_in_send_queue": 1 << 30}
    async with LocalCluster(store_config=STORE, broker_config=busy, clock=SystemClock()) as cluster:
        await cluster.create_topic(TOPIC, queues=4)
        side = FastPathSide(cluster.broker())
        async with cluster.admin() as admin:
            await admin.create_group(GROUP)
        for number in range(stored // COUNT):
            side.serve(b"".join(send(COUNT * number + each) for each in range(COUNT)))
        yield side


async def fast_path(backend: str) -> None:
    async with opened(backend) as side:
        await answer(side.measure)


async def count(backend: str, shape: str, bursts_counted: str) -> None:
    with contextlib.suppress(ImportError):  # not in older versions
        from aerobee.broker.fastpath import fast_path
        from aerobee.broker.fastpath.fast_path import FastPath
        from aerobee.broker.metrics import metrics
        from aerobee.remoting.loop_watch import LoopWatch

        # Under valgrind everything takes so long that it would be noted; `max` is code of C's that takes the same arguments.
        FastPath._put_took = FastPath._get_took = max  # type: ignore[assignment, method-assign]
        LoopWatch.note_burst = lambda *_: None  # type: ignore[method-assign]
        # So that a burst is as short as without valgrind: more steps for native code, whose step is fixed; and for Python a
        # 2,000th as many steps a second, for as many steps.
        if backend == "native":
            metrics._NO_STEPS = array("q", bytes(8 << 20))  # type: ignore[attr-defined]
        fast_path.STEPPED_S, fast_path.STEPS_A_S = fast_path.STEPPED_S * 2_048, fast_path.STEPS_A_S / 2_048
    async with opened(backend, STORED if shape == "pull-32" or shape in POPS else COUNT) as side:
        await side.served(shape, int(bursts_counted) * 2)  # the interpreter has seen it all then
        side.stats.stop()  # samples once a second, which is once in some bursts under valgrind
        gc.disable()
        print("ready", flush=True)
        sys.stdin.readline()
        os.getloadavg()
        await side.served(shape, int(bursts_counted))
        os.sched_yield()
        os._exit(0)


async def client(codec: str, nameserver: str, topic: str) -> None:
    os.environ["AEROBEE_CLIENT_CODEC"] = codec
    groups = 0

    async def measure(shape: str, amount: float) -> float:
        nonlocal groups
        if shape == "producer":
            return await produced(producer, topic, int(amount))
        groups += 1
        return await consumed(nameserver, topic, f"turns-{os.getpid()}-{groups}", int(amount))

    async with Producer(nameserver) as producer:
        await answer(measure)


async def produced(producer: Producer, topic: str, count: int) -> float:
    """us of CPU a send, 64 under way."""
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send(Message(topic, BODY))

    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return (time.process_time() - began) / count * 1e6


async def consumed(nameserver: str, topic: str, group: str, count: int) -> float:
    """us of CPU a message of those that are stored, without the first quarter: starting is no part of it."""
    received, began = 0, 0.0
    done = asyncio.Event()

    async def handler(_: object) -> None:
        nonlocal received, began
        received += 1
        if received == count // 4:
            began = time.process_time()
        if received >= count:
            done.set()

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(nameserver, group, subscriptions={topic: "*"}, handler=handler, config=config):
        await done.wait()
        return (time.process_time() - began) / (received - count // 4) * 1e6


async def answer(measure: Measure) -> None:
    """Answer lines until there are no more."""
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        shape, amount = line.split()
        print(await measure(shape, float(amount)), flush=True)
    os._exit(0)  # what is stored is of no use, and closing it takes long


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
        runner.run({"fast-path": fast_path, "client": client, "count": count}[sys.argv[1]](*sys.argv[2:]))
