"""CPU that a client spends on a message, the broker being one process and the client another.

    python bench/clients.py [--count 100000] [--rounds 5] [--grpc 5000]

Our Producer with 64 sends under way, our PushConsumer reading what is stored; microseconds of client CPU a message,
without the interpreter's start. Both codecs of the client take turns, the native one (aerobee_native) and the Python one;
the minimum is what asyncio itself takes for a task that hands over a ready frame and awaits a future. --grpc N: RocketMQ's official Python client (gRPC, through RocketMQ's proxy) does the
same with N messages, in its own environment (scripts/setup-bench). Results go to
bench/results/clients.json and clients-grpc.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import time

import results_file
import servers
from compare import LoadFailed, note, run_load

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

from aerobee.client import Admin, ConsumeFrom, ConsumerConfig, Producer, ProducerConfig, PushConsumer
from aerobee.client.session.codec import NATIVE, PYTHON, VARIABLE, native_codec
from aerobee.errors import ConfigError
from aerobee.message import Message

IN_FLIGHT = 64
BODY = b"x" * 128
WARM = 2_000


async def produce(nameserver: str, topic: str, count: int, linger_ms: float = 0) -> float:
    """Send `count` messages with 64 under way; return the CPU microseconds of one."""
    async with Producer(nameserver, config=ProducerConfig(linger_ms=linger_ms)) as producer:
        left = WARM

        async def worker() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await producer.send(Message(topic, BODY))

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
        left = count
        began = time.process_time()
        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
        return (time.process_time() - began) / count * 1e6


async def consume(nameserver: str, topic: str, group: str, count: int) -> float:
    """Consume `count` stored messages with a handler; return the CPU microseconds of one."""
    received = 0
    done = asyncio.Event()

    async def handler(_: object) -> None:
        nonlocal received
        received += 1
        if received >= count:
            done.set()

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    began = time.process_time()
    async with PushConsumer(nameserver, group, subscriptions={topic: "*"}, handler=handler, config=config):
        await done.wait()
        return (time.process_time() - began) / count * 1e6


async def asyncio_minimum(count: int) -> float:
    """Hand over `count` ready frames and await a future for each, 64 at a time, without a socket."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []
    frames: list[bytes] = []
    left = count

    def answered(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)

    def flush() -> None:
        frames.clear()
        futures = waiting.copy()
        waiting.clear()
        loop.call_soon(answered, futures)

    async def send(frame: bytes) -> None:
        future = loop.create_future()
        if not waiting:
            loop.call_soon(flush)
        waiting.append(future)
        frames.append(frame)
        await future

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await send(BODY)

    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return (time.process_time() - began) / count * 1e6


async def measure(nameserver: str, count: int, rounds: int) -> dict[str, list[float]]:
    """Rounds of producer and consumer interleaved, each on a separate topic."""
    codecs = {PYTHON: "python_", NATIVE: ""}
    try:
        native_codec()
    except ConfigError as error:
        note(f"{error}; only the Python codec is measured")
        del codecs[NATIVE]
    figures: dict[str, list[float]] = {"floor_us": []}
    for number in range(rounds):
        figures["floor_us"].append(await asyncio_minimum(count))
        for codec, prefix in codecs.items():
            os.environ[VARIABLE] = codec
            name = f"clients-{os.getpid()}-{codec}-{number}"
            async with Admin(nameserver) as admin:
                await admin.create_topic(name, queue_count=4)
                await admin.create_topic(name + "-linger", queue_count=4)
            sent = await produce(nameserver, name, count)
            lingered = await produce(nameserver, name + "-linger", count, linger_ms=1)
            figures.setdefault(f"{prefix}lingering_us", []).append(lingered)
            received = await consume(nameserver, name, name, count)
            figures.setdefault(f"{prefix}producer_us", []).append(sent)
            figures.setdefault(f"{prefix}consumer_us", []).append(received)
            note(
                f"round {number + 1}, {codec}: producer {sent:.2f} us, with linger_ms=1 {lingered:.2f} us, consumer {received:.2f} us"
            )
    return figures


def official_client(count: int, rounds: int) -> dict[str, list[float]]:
    """The same of RocketMQ's gRPC client, in separate processes."""
    python = servers.ROCKETMQ_LIB.parent / "grpc-venv" / "bin" / "python"
    figures: dict[str, list[float]] = {"grpc_producer_us": [], "grpc_consumer_us": []}
    with servers.rocketmq_proxy() as (broker, port):
        for number in range(rounds):
            topic = f"grpc-{number}"
            run_load("rmqload.py", "topic", "--broker", broker.address, "--topic", topic)
            for mode, key in (("send", "grpc_producer_us"), ("receive", "grpc_consumer_us")):
                command = [
                    str(python),
                    str(servers.HERE / "grpc_client.py"),
                    mode,
                    f"127.0.0.1:{port}",
                    topic,
                ]
                done = subprocess.run(
                    [*command, str(count)], capture_output=True, text=True, timeout=600, check=False
                )
                if done.returncode:
                    raise LoadFailed(f"{' '.join(command)}: {done.stderr.strip()[-800:]}")
                figures[key].append(float(done.stdout.split()[-1]))
                note(f"round {number + 1} {key}: {figures[key][-1]:.1f}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--grpc", type=int, default=0, help="messages for the official gRPC client; 0: leave it out"
    )
    options = parser.parse_args()
    with servers.aerobee() as server:
        nameserver = f"127.0.0.1:{server.nameserver_port}"
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
            found = runner.run(measure(nameserver, options.count, options.rounds))
    results_file.write("clients", found)
    if options.grpc:
        official = official_client(options.grpc, min(options.rounds, 3))
        results_file.write("clients-grpc", official)
        found |= official
    for name, figures in found.items():
        print(f"{name}: {statistics.median(figures):.2f}")


if __name__ == "__main__":
    main()
