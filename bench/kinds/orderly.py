"""Server CPU of ordered consumption, Aerobee compared with RocketMQ 5.5.0, alternating in one run.

    python bench/kinds/orderly.py [--servers aerobee,aerobee-python,rocketmq] [--rounds 5] [--messages 40000]

The client is Aerobee's for every server: a push consumer with orderly=True, locks, pulls of 32, offsets committed with
the pulls. "backlog": 128-byte messages of 4 queues that are there already; "live": each is sent alone, 64 in flight, while
the consumer is up, and the figure holds the send, too. The figure is the server's CPU time a message, median of the
rounds; the JVM is warmed by WARM_ROUNDS rounds that do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from aerobee.client import Admin, ConsumeFrom, ConsumerConfig, Producer, PushConsumer, ReceivedMessage
from aerobee.message import Message, MessageQueue
from bench import results_file, servers
from bench.load.server import process_cpu_s
from bench.servers import Server

QUEUES = 4
BATCH = 64
IN_FLIGHT = 64
WARM_ROUNDS = 3
BODY = b"x" * 128
CONFIG = ConsumerConfig(orderly=True, consume_from=ConsumeFrom.FIRST)
SERVERS = {
    "aerobee": lambda: servers.aerobee(),
    "aerobee-python": lambda: servers.aerobee_python(),
    "before": lambda: servers.before(),
    "before-python": lambda: servers.before_python(),
    "rocketmq": lambda: servers.rocketmq(heap="1g"),
}


def cpu_s(server: Server) -> float:
    return sum(map(process_cpu_s, server.pids))


async def create(server: Server, topic: str) -> list[MessageQueue]:
    nameserver = f"127.0.0.1:{server.nameserver_port}"
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queue_count=QUEUES)
    async with Producer(nameserver) as producer, asyncio.timeout(60):
        while len(queues := await producer.queues(topic)) < QUEUES:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return list(queues)


class Counter:
    """The handler: checks the order, and says when all is there."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._next = [0] * QUEUES
        self.done = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        queue = message.queue.queue_id
        if message.queue_offset != self._next[queue]:
            raise SystemExit(f"queue {queue}: {message.queue_offset} came instead of {self._next[queue]}")
        self._next[queue] += 1
        self._left -= 1
        if not self._left:
            self.done.set()


async def backlog(server: Server, topic: str, group: str, count: int) -> float:
    """Consume `count` messages that are there; return the server's us a message."""
    counter = Counter(count)
    nameserver = f"127.0.0.1:{server.nameserver_port}"
    before = cpu_s(server)
    async with (
        asyncio.timeout(120),
        PushConsumer(nameserver, group, subscriptions={topic: "*"}, handler=counter, config=CONFIG),
    ):
        await counter.done.wait()
        spent = cpu_s(server) - before
    return spent / count * 1e6


async def live(server: Server, topic: str, group: str, count: int) -> float:
    """Send and consume `count` messages; return the server's us a message."""
    queues = await create(server, topic)
    counter = Counter(count)
    nameserver = f"127.0.0.1:{server.nameserver_port}"
    async with (
        asyncio.timeout(120),
        PushConsumer(
            nameserver, group, subscriptions={topic: "*"}, handler=counter, config=CONFIG
        ) as consumer,
        Producer(nameserver) as producer,
    ):
        while len([queue for queue in consumer.owned if queue.topic == topic]) < QUEUES:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        before = cpu_s(server)
        numbers = iter(range(count))

        async def sender() -> None:
            for number in numbers:
                await producer.send(Message(topic, BODY), queue=queues[number % QUEUES])

        await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))
        await counter.done.wait()
        spent = cpu_s(server) - before
    return spent / count * 1e6


async def fill(server: Server, topic: str, count: int) -> None:
    queues = await create(server, topic)
    async with Producer(f"127.0.0.1:{server.nameserver_port}") as producer:
        for _ in range(0, count, BATCH * QUEUES):
            for queue in queues:
                await producer.send_batch([Message(topic, BODY)] * BATCH, queue=queue)


async def measure(running: list[Server], rounds: int, count: int) -> dict[str, dict[str, list[float]]]:
    count -= count % (BATCH * QUEUES)
    figures: dict[str, dict[str, list[float]]] = {
        server.name: {"backlog": [], "live": []} for server in running
    }
    for server in running:
        await fill(server, "backlog", count)
    for number in range(-WARM_ROUNDS, rounds):
        for server in running:
            group = f"G{number + WARM_ROUNDS}"
            one = await backlog(server, "backlog", group, count)
            other = await live(server, f"live{number + WARM_ROUNDS}", group, count // 4)
            print(
                f"round {number}: {server.name} backlog {one:.2f} live {other:.2f}",
                file=sys.stderr,
                flush=True,
            )
            if number >= 0:
                figures[server.name]["backlog"].append(one)
                figures[server.name]["live"].append(other)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default="aerobee,aerobee-python,rocketmq")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=40_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        running = [stack.enter_context(SERVERS[name]()) for name in options.servers.split(",")]
        figures = asyncio.run(measure(running, options.rounds, options.messages))
    medians = {
        name: {kind: round(statistics.median(values), 2) for kind, values in kinds.items()}
        for name, kinds in figures.items()
    }
    rows = [
        results_file.kind_row(
            title,
            {name: kinds[kind] for name, kinds in medians.items()},
            goal="<= 0.5 x",
            base=medians.get("rocketmq", {}).get(kind),
        )
        for kind, title in (("backlog", "a backlog"), ("live", "sent meanwhile"))
    ]
    results_file.write_kind("orderly", "Orderly consumption", rows, medians)
    print("| server | backlog, us a message | of RocketMQ | live, us a message | of RocketMQ |")
    print("|---|---|---|---|---|")
    base = medians.get("rocketmq")
    for name, kinds in medians.items():
        cells = []
        for kind in ("backlog", "live"):
            share = f"{kinds[kind] / base[kind]:.2f}" if base else "-"
            cells += [f"{kinds[kind]:.2f}", share]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
