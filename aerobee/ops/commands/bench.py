"""`aerobee bench produce|consume`: rates and latencies at the client, with the short options of RocketMQ's benchmarks.

    -t topic   -w concurrent sends   -s body bytes   -n nameserver

Each rate is printed with the ack level of the brokers, because rates are comparable only at the same level. The client
shares the cores of its machine; when it uses a whole core, it is the limit, and the command prints a note.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from aerobee.client import (
    ConsumeFrom,
    Producer,
    ProducerConfig,
    PullConsumerConfig,
    SendResult,
)
from aerobee.errors import AerobeeError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import Message
from aerobee.ops.commands.bench_probe import probe
from aerobee.ops.commands.send import ack_of
from aerobee.ops.options.clients import open_admin, open_producer, open_pull_consumer
from aerobee.ops.options.options import AsJson
from aerobee.ops.terminal.failure import UnhealthyError, explain
from aerobee.ops.terminal.latency import LatencyHistogram
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import seconds as span
from aerobee.system_names import TOOLS_GROUP
from aerobee.words import plural

TOPIC = "aerobee-bench"  # not RocketMQ's BenchmarkTest: the run would measure the files of its 1,024 queues
QUEUE_COUNT = 8
REPORT_EVERY_S = 0.5
SECONDS = 10.0
ERRORS_MAX = 100  # the run ends after this many errors: the rate of a broken cluster means nothing
CLIENT_BOUND = 0.9  # share of a core above which the client counts as the limit

NameServers = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar=["AEROBEE_NAMESRV_ADDR", "NAMESRV_ADDR"],
        metavar="HOST:PORT[;…]",
        help="Addresses of the NameServers.",
    ),
]
Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic.")]

app = typer.Typer(
    name="bench", help="Measure rates and latencies: produce, consume, probe.", no_args_is_help=True
)
app.command("probe")(probe)


@app.command("produce")
def produce(
    workers: Annotated[
        int, typer.Option("--workers", "-w", min=1, max=10_000, help="Number of concurrent sends.")
    ] = 64,
    size: Annotated[
        int, typer.Option("--size", "-s", min=0, max=4_194_304, help="Body size in bytes.")
    ] = 128,
    topic: Topic = TOPIC,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    count: Annotated[int, typer.Option("--count", min=0, help="Number of messages; 0: no limit.")] = 0,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            parser=span,
            metavar="SPAN",
            help="Duration of the run: 30, 5m; 0: until Ctrl-C (default 10 s, without --count).",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=10_000, help="Number of messages in one request.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Measure the send rate and the latency of a producer."""
    out = Output(as_json)
    run(
        lambda stop: _produce(
            stop, out, workers, size, topic, nameserver, count, _limit(seconds, count), batch
        )
    )


@app.command("consume")
def consume(
    topic: Topic = TOPIC,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    count: Annotated[int, typer.Option("--count", min=0, help="Number of messages; 0: no limit.")] = 0,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            parser=span,
            metavar="SPAN",
            help="Duration of the run: 30, 5m; 0: until Ctrl-C (default 10 s, without --count).",
        ),
    ] = None,
    first: Annotated[bool, typer.Option("--from-first", help="Start at the first stored message.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the rate of a consumer and the latency from the born time to the receipt."""
    out = Output(as_json)
    run(lambda stop: _consume(stop, out, topic, nameserver, count, _limit(seconds, count), first))


def _limit(seconds: float | None, count: int) -> float:
    return seconds if seconds is not None else 0.0 if count else SECONDS


async def _produce(
    stop: Stop,
    out: Output,
    workers: int,
    size: int,
    topic: str,
    nameserver: str,
    count: int,
    seconds: float,
    batch: int,
) -> None:
    message = Message(topic, os.urandom(size))
    histogram = LatencyHistogram()
    meter = _Meter(count, seconds)
    brokers: set[str] = set()

    async def worker(producer: Producer) -> None:
        while not meter.over and (share := meter.take(batch)):
            began = time.perf_counter()
            try:
                if batch == 1:
                    results: tuple[SendResult, ...] = (await producer.send(message),)
                else:
                    results = await producer.send_batch([message] * share)
            except AerobeeError as error:
                meter.give_back(share)
                meter.fail(error)
                continue
            histogram.add(time.perf_counter() - began)
            meter.add(len(results))
            meter.body_bytes += size * len(results)
            brokers.add(results[0].queue.broker_name)

    async with open_admin(nameserver) as admin:
        if topic == TOPIC and not await admin.topic_exists(topic):
            await admin.create_topic(topic, queue_count=QUEUE_COUNT)
    async with open_producer(
        nameserver, "aerobee-bench", config=ProducerConfig(in_flight_max=max(workers, 1))
    ) as producer:
        first = await producer.send(
            message
        )  # opens the connection, fetches the route and creates the topic before the measurement
        brokers.add(first.queue.broker_name)
        meter.add(meter.take(1))
        meter.body_bytes += size
        ack = await ack_of(nameserver, brokers)
        out.note(f"sending {plural(size, 'byte')} to {topic}, {workers} concurrent sends; {ack}")
        meter.begin()

        async def all_workers() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(workers):
                    group.create_task(worker(producer), name=f"bench-{number}")

        await _run_with_progress(stop, out, all_workers(), meter, histogram, "sent")
    _report(
        out, meter, histogram, "sent", {"workers": workers, "size": size, "batch": batch, "topic": topic}, ack
    )


async def _consume(
    stop: Stop, out: Output, topic: str, nameserver: str, count: int, seconds: float, first: bool
) -> None:
    histogram = LatencyHistogram()
    meter = _Meter(count, seconds)
    config = PullConsumerConfig(
        auto_commit=False, consume_from=ConsumeFrom.FIRST if first else ConsumeFrom.LAST
    )
    async with open_pull_consumer(nameserver, TOOLS_GROUP, config=config) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        for queue in queues:
            await (consumer.seek_to_begin(queue) if first else consumer.seek_to_end(queue))
        ack = await ack_of(nameserver, {queue.broker_name for queue in queues})
        out.note(f"reading {topic}, {plural(len(queues), 'queue')}; {ack}")
        meter.begin()
        began_ms = time.time() * 1000

        async def read() -> None:
            while not meter.over:
                messages = await consumer.poll(timeout_s=REPORT_EVERY_S)
                now_ms = time.time() * 1000
                for message in messages:
                    # The age of messages stored before this run is not a delivery latency.
                    if message.born_timestamp >= began_ms:
                        histogram.add((now_ms - message.born_timestamp) / 1000)
                    meter.body_bytes += len(message.stored_body)
                if messages:
                    meter.add(len(messages))

        await _run_with_progress(stop, out, read(), meter, histogram, "received")
    _report(out, meter, histogram, "received", {"topic": topic, "queues": len(queues)}, ack)
    if not meter.done and not first:
        out.note("no message arrived during the run; --from-first reads the stored messages")


class _Meter:
    """The end condition of a run, and its counts."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count = count
        self._seconds = seconds
        self._began = time.perf_counter()
        self._cpu_began = time.process_time()
        self._last = self._began
        self.done = 0
        self._taken = 0
        self.body_bytes = 0
        self.errors = 0
        self.last_error: BaseException | None = None

    def begin(self) -> None:
        self._began = time.perf_counter()
        self._cpu_began = time.process_time()

    def take(self, most: int) -> int:
        """Reserve up to `most` of the remaining messages for a worker; 0 when all are reserved."""
        share = min(most, self._count - self._taken) if self._count else most
        self._taken += share
        return share

    def give_back(self, share: int) -> None:
        """Return a reservation whose send failed, for any worker."""
        self._taken -= share

    def add(self, count: int) -> None:
        self.done += count
        self._last = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began

    @property
    def busy_s(self) -> float:
        """Seconds from begin() to the last message: the wait of a reader that has caught up does not count."""
        return max(self._last - self._began, 1e-9)

    @property
    def cpu_share(self) -> float:
        """Share of one core that this process used since begin()."""
        return (time.process_time() - self._cpu_began) / max(self.elapsed_s, 1e-9)

    @property
    def over(self) -> bool:
        if self._count and self.done >= self._count:
            return True
        return bool(self._seconds) and self.elapsed_s >= self._seconds

    def fail(self, error: BaseException) -> None:
        """Count a failure. Raises UnhealthyError at ERRORS_MAX failures."""
        self.errors += 1
        self.last_error = error
        if self.errors >= ERRORS_MAX:
            raise UnhealthyError(
                f"{plural(self.errors, 'send')} failed, the last with: {explain(error).sentence}"
            ) from error


async def _run_with_progress(
    stop: Stop, out: Output, work: Any, meter: _Meter, histogram: LatencyHistogram, verb: str
) -> None:
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    ) as progress:
        line = progress.add_task("starting", total=None)

        async def show() -> None:
            while True:
                before, moment = meter.done, time.perf_counter()
                await asyncio.sleep(REPORT_EVERY_S)
                rate = (meter.done - before) / (time.perf_counter() - moment)
                progress.update(
                    line,
                    description=f"{meter.done:,} {verb}, {rate:,.0f}/s, p50 {histogram.percentile_ms(50):.2f} ms, "
                    f"p99 {histogram.percentile_ms(99):.2f} ms, {plural(meter.errors, 'error')}",
                )

        shown = asyncio.create_task(show(), name="bench-progress")
        try:
            await stop.or_done(work)
        finally:
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)


def _report(
    out: Output, meter: _Meter, histogram: LatencyHistogram, verb: str, shape: dict[str, Any], ack: str
) -> None:
    seconds = meter.busy_s
    document = shape | {
        verb: meter.done,
        "errors": meter.errors,
        "seconds": round(seconds, 3),
        "per_second": round(meter.done / seconds, 1),
        "mib_per_second": round(meter.body_bytes / seconds / 2**20, 3),
        **histogram.summary(),
        "client_cpu_share": round(meter.cpu_share, 3),
        "ack": ack,
    }
    out.facts(document)
    if meter.last_error is not None:
        out.note(
            f"{meter.errors} failed, the last with: {explain(meter.last_error).sentence}", style="yellow"
        )
    if meter.cpu_share > CLIENT_BOUND:
        out.note("this client used a whole core: the brokers may be faster than this rate")
