"""A long mixed load with consumers coming and going: memory, file handles and latency must stay flat.

    python tests/survival/soak.py [--minutes 60] [--rate 300] [--out bench/results/soak.json] [--plot bench/results/soak.svg]

Sent: single messages with tag and key, batches of 8, delayed ones, one-way ones; a steady group consumes everything
and fails one message in 500, so that retries go round; other groups come and go, and every fourth of them is a process
that is killed. Log files are small, so that they roll over all the while; they are kept for `--keep-hours`, far longer than
the ten seconds that a message waits for its retry. Checked at the end: the steady group got every acknowledged message,
without exception; its own memory (RssAnon), handles and threads of broker and nameserver, and the 99th percentile of
sends do not grow from the second quarter of the run to the last; the store's files, which are kept, are counted apart
from the other handles. Ends with status 1 when something is missing or grows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from line_chart import Panel, draw
from process_figures import ProcessFigures, look_at, open_files_below

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ConsumeFrom, ConsumerConfig
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.verdict import RetryLater
from aerobee.client.consumer.push_consumer import PushConsumer
from aerobee.client.producer.producer import Producer
from aerobee.errors import AerobeeError
from aerobee.message import Message

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import servers  # noqa: E402

TOPIC = "soak"
BATCH_COUNT = 8
SAMPLES_PER_RUN = 240
SETTLE_S = 60.0  # at the end, at most, for retries and delayed messages that are still on their way
MISSING_SHOWN_MAX = 20
# Growth that fails the run, last quarter against the second one. Memory: allocators and caches move by a few MiB.
MEMORY_GROWTH_MAX_BYTES = 12 << 20
LATENCY_GROWTH_MAX = 2.0
LATENCY_MIN_MS = 20.0  # below it a percentile of a busy machine says nothing


@dataclass
class Load:
    """What was sent and what came back. Numbers of messages index the flags."""

    rng: random.Random
    sent: int = 0
    send_failures: int = 0
    acked: bytearray = field(default_factory=bytearray)
    seen: bytearray = field(default_factory=bytearray)
    send_ms: list[float] = field(default_factory=list)  # since the last sample
    delivery_ms: list[float] = field(default_factory=list)
    delayed: set[int] = field(default_factory=set)
    retried: int = 0
    redelivered: int = 0
    visitors: int = 0
    kills: int = 0

    def next_body(self) -> tuple[int, bytes]:
        number = self.sent
        self.sent += 1
        self.acked.append(0)
        self.seen.append(0)
        padding = b"x" * self.rng.choice((40, 100, 100, 700))
        return number, b"%d %d " % (number, time.monotonic_ns()) + padding


async def send_all(load: Load, producer: Producer, rate: int, until: float) -> None:
    """Open loop: a message is due at its time, whatever became of those before it."""
    due = time.monotonic()
    tasks: set[asyncio.Task[None]] = set()
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        kind = load.rng.random()
        count = BATCH_COUNT if kind < 0.02 else 1
        task = asyncio.create_task(send_one(load, producer, kind, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += count / rate
    await asyncio.gather(*tasks)


async def send_one(load: Load, producer: Producer, kind: float, due: float) -> None:
    numbers = []
    try:
        if kind < 0.02:
            batch = []
            for _ in range(BATCH_COUNT):
                number, body = load.next_body()
                numbers.append(number)
                batch.append(Message(TOPIC, body))
            await producer.send_batch(batch)
        else:
            number, body = load.next_body()
            if kind < 0.04:
                await producer.send_oneway(Message(TOPIC, body))
                return
            numbers.append(number)
            is_delayed = kind < 0.06
            if is_delayed:
                load.delayed.add(number)
            message = Message(
                TOPIC, body, tag="AB"[number % 2], keys=(f"K{number}",), delay_level=int(is_delayed)
            )
            await producer.send(message)
    except AerobeeError:
        load.send_failures += 1
        return
    load.send_ms.append((time.monotonic() - due) * 1000)
    for number in numbers:
        load.acked[number] = 1


async def steady_handler(load: Load, message: ReceivedMessage) -> None:
    number, sent_ns = (int(part) for part in message.body.split(b" ", 2)[:2])
    if load.seen[number]:
        load.redelivered += 1
    elif number % 500 == 7 and message.reconsume_times == 0:
        load.retried += 1
        raise RetryLater("this message is to come again")
    elif message.reconsume_times == 0 and "DELAY" not in message.properties:
        load.delivery_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
    load.seen[number] = 1


async def visit(load: Load, nameserver: str, until: float) -> None:
    """Groups that come, read from the beginning or the end, and go; every fourth is a process that is killed."""
    while time.monotonic() < until:
        load.visitors += 1
        group = f"visitors-{load.rng.randrange(6)}"
        stay_s = min(load.rng.uniform(2, 20), max(0.0, until - time.monotonic()))
        if load.visitors % 4 == 0:
            command = [
                sys.executable,
                "-m",
                "aerobee.ops.cli",
                "consume",
                TOPIC,
                "-n",
                nameserver,
                "-g",
                group,
            ]
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            await asyncio.sleep(stay_s)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            load.kills += 1
            await process.wait()
        else:
            start = load.rng.choice((ConsumeFrom.FIRST, ConsumeFrom.LAST))
            consumer = PushConsumer(
                nameserver,
                group,
                subscriptions={TOPIC: load.rng.choice(("*", "A", "A || B"))},
                handler=lambda message: None,
                config=ConsumerConfig(consume_from=start, drain_s=1.0),
            )
            try:
                async with consumer:
                    await asyncio.sleep(stay_s)
            except AerobeeError:
                load.send_failures += 1
        await asyncio.sleep(load.rng.uniform(0.5, 5))


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def sample(
    load: Load, at_s: float, broker: ProcessFigures, nameserver: ProcessFigures, store_files: int
) -> dict[str, float]:
    send_ms, load.send_ms = load.send_ms, []
    delivery_ms, load.delivery_ms = load.delivery_ms, []
    return {
        "at_s": round(at_s, 1),
        "sent": load.sent,
        "broker_anonymous_mib": round(broker.anonymous_bytes / 2**20, 2),
        "broker_file_mib": round(broker.file_bytes / 2**20, 2),
        "broker_handles": broker.handles - store_files,
        "broker_store_files": store_files,
        "broker_threads": broker.threads,
        "broker_cpu_s": broker.cpu_s,
        "nameserver_anonymous_mib": round(nameserver.anonymous_bytes / 2**20, 2),
        "nameserver_handles": nameserver.handles,
        "send_p50_ms": round(percentile(send_ms, 0.5), 2),
        "send_p99_ms": round(percentile(send_ms, 0.99), 2),
        "delivery_p50_ms": round(percentile(delivery_ms, 0.5), 2),
        "delivery_p99_ms": round(percentile(delivery_ms, 0.99), 2),
    }


async def run(server: servers.Server, minutes: float, rate: int, seed: int) -> dict[str, object]:
    """Load the servers and sample them. Returns the figures, faults included."""
    nameserver = f"127.0.0.1:{server.nameserver_port}"
    load = Load(random.Random(seed))
    nameserver_pid, broker_pid = server.pids
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queue_count=4, broker=server.address)
    samples: list[dict[str, float]] = []
    started = time.monotonic()
    until = started + minutes * 60
    interval_s = max(0.5, minutes * 60 / SAMPLES_PER_RUN)
    steady = PushConsumer(
        nameserver,
        "steady",
        subscriptions={TOPIC: "*"},
        handler=partial(steady_handler, load),
        config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
    )
    async with steady, Producer(nameserver) as producer, asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send_all(load, producer, rate, until), name="send")
        tasks.create_task(visit(load, nameserver, until), name="visit")
        while not sending.done():
            await asyncio.wait([sending], timeout=interval_s)
            at_s = time.monotonic() - started
            store_files = open_files_below(broker_pid, server.directory.resolve())
            samples.append(sample(load, at_s, look_at(broker_pid), look_at(nameserver_pid), store_files))
            print(json.dumps(samples[-1]), file=sys.stderr, flush=True)
        settle_until = time.monotonic() + SETTLE_S
        while missing(load) and time.monotonic() < settle_until:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    lost = missing(load)
    return {
        "minutes": minutes,
        "rate": rate,
        "seed": seed,
        "sent": load.sent,
        "acked": sum(load.acked),
        "send_failures": load.send_failures,
        "acked_but_never_received": len(lost),
        "of_these_delayed": len(load.delayed.intersection(lost)),
        "of_these_to_be_retried": sum(number % 500 == 7 for number in lost),
        "numbers_of_these": lost[:MISSING_SHOWN_MAX],
        "retried": load.retried,
        "received_twice": load.redelivered,
        "visitors": load.visitors,
        "visitors_killed": load.kills,
        "broker_us_per_message": round(samples[-1]["broker_cpu_s"] / max(1, load.sent) * 1e6, 1),
        "samples": samples,
    }


def missing(load: Load) -> list[int]:
    return [
        number for number, (acked, seen) in enumerate(zip(load.acked, load.seen, strict=True)) if acked > seen
    ]


def judge(figures: dict[str, object]) -> list[str]:
    """What did not stay flat, or was lost; empty when all held."""
    faults = []
    if figures["acked_but_never_received"]:
        faults.append(f"{figures['acked_but_never_received']} acknowledged messages were never received")
    if figures["send_failures"]:
        faults.append(f"{figures['send_failures']} sends failed")
    samples = figures["samples"]
    assert isinstance(samples, list)
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]

    def medians(name: str) -> tuple[float, float]:
        return (
            statistics.median(each[name] for each in early),
            statistics.median(each[name] for each in late),
        )

    for name in ("broker_anonymous_mib", "nameserver_anonymous_mib"):
        before, after = medians(name)
        if (after - before) * 2**20 > MEMORY_GROWTH_MAX_BYTES:
            faults.append(f"{name} grew from {before} to {after}")
    for name in ("broker_handles", "nameserver_handles", "broker_threads"):
        before, after = medians(name)
        if after > before + 8:
            faults.append(f"{name} grew from {before} to {after}")
    for name in ("send_p99_ms", "delivery_p99_ms"):
        before, after = medians(name)
        if after > max(LATENCY_MIN_MS, before * LATENCY_GROWTH_MAX):
            faults.append(f"{name} grew from {before} to {after}")
    return faults


def plot(samples: Sequence[dict[str, float]]) -> str:
    def line(name: str) -> list[float]:
        return [each[name] for each in samples]

    return draw(
        "minutes",
        [each["at_s"] / 60 for each in samples],
        [
            Panel(
                "its own memory, MiB (RssAnon)",
                {"broker": line("broker_anonymous_mib"), "nameserver": line("nameserver_anonymous_mib")},
            ),
            Panel(
                "file handles", {"broker": line("broker_handles"), "nameserver": line("nameserver_handles")}
            ),
            Panel("send to acknowledgement, ms", {"p50": line("send_p50_ms"), "p99": line("send_p99_ms")}),
            Panel("send to handler, ms", {"p50": line("delivery_p50_ms"), "p99": line("delivery_p99_ms")}),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=300, help="messages a second")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--log-mib", type=int, default=16, help="size of a log file")
    parser.add_argument("--keep-hours", type=int, default=72, help="a full log file is deleted after so long")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.keep_hours < 1:
        parser.error("--keep-hours: at least 1, or messages are deleted while they wait for their retry")
    settings = {
        "mappedFileSizeCommitLog": str(options.log_mib << 20),
        "mappedFileSizeConsumeQueue": str(20 * 20_000),
        "maxHashSlotNum": "50000",
        "maxIndexNum": "200000",
        "fileReservedTime": str(options.keep_hours),
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    }
    with servers.aerobee(extra=settings) as server:
        figures = asyncio.run(run(server, options.minutes, options.rate, options.seed))
        log = (server.directory / "broker.log").read_text(errors="replace")
    figures["log_errors"] = [line for line in log.splitlines() if " ERROR " in line or "Traceback" in line][
        :20
    ]
    faults = judge(figures)
    if figures["log_errors"]:
        faults.append(f"the broker's log holds errors: {figures['log_errors']}")
    figures["faults"] = faults
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    if options.plot is not None:
        options.plot.write_text(plot(figures["samples"]))  # type: ignore[arg-type]
    print(json.dumps({name: value for name, value in figures.items() if name != "samples"}, indent=1))
    for fault in faults:
        print(f"FAULT (seed {options.seed}): {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
