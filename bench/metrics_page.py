"""What a page of /metrics costs: `python bench/metrics_page.py [--topics 5000] [--groups 20]`.

A broker with that many topics, of which each group has an offset: measures two passes of the lag sampler, without its pauses (the second finds that
nothing has moved), and pages: the pre-rendered one and the first scrape after it, one where nothing has
changed, one where a hundredth of the counters has, and, with --all, one where every counter has, one where everything has (lag, too),
and a first scrape that comes before the first page is there. Of each the work, the time until it was there, packed by gzip as
Prometheus requests it, and the longest time that it blocked the event loop. One that is not whole is answered without its last
families, and requested again.

With --producer instead: how long sends of one producer wait, one at a time, 200 a second, without scrapes and with one every
5 s and each page has a hundredth of its counters changed; interleaved, the broker in a separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import multiprocessing
import socket
import tempfile
import time
from time import perf_counter

import aiohttp

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.exporter import lag_sampler
from aerobee.broker.state.config import BrokerConfig
from aerobee.client.session.send_header import SendTemplate
from aerobee.collector import own_process
from aerobee.message import MessageQueue
from aerobee.monitoring.http_server import HttpServer
from aerobee.monitoring.page import PageMaker
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.files.config import StoreConfig


class LoopHold:
    """The longest time between two turns of a task that asks for each turn."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._run())

        self.collected_s = 0.0  # the longest time in Python's collector of cycles
        self._collecting_since = 0.0
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = perf_counter()
        else:
            self.collected_s = max(self.collected_s, perf_counter() - self._collecting_since)

    async def _run(self) -> None:
        before = perf_counter()
        while True:
            await asyncio.sleep(0)
            now = perf_counter()
            self.longest_s = max(self.longest_s, now - before)
            before = now

    def stop(self) -> str:
        self._task.cancel()
        gc.callbacks.remove(self._on_collection)
        return f"blocked the event loop for {self.longest_s * 1000:.1f} ms at most, of it a collection of cycles {self.collected_s * 1000:.1f}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--all", action="store_true", help="also a page of which every counter has changed")
    parser.add_argument(
        "--producer", action="store_true", help="how long sends wait meanwhile, and nothing else"
    )
    asked = parser.parse_args()
    own_process()  # as a broker does
    lag_sampler.PAUSE_SLICES = 0  # a broker measures at 5 % of a core: with 100,000 pairs that takes minutes
    with tempfile.TemporaryDirectory() as path:
        config = BrokerConfig(
            bind_address="127.0.0.1",
            broker_ip1="127.0.0.1",
            listen_port=0,
            metrics_exporter_type="PROM",
            metrics_prom_exporter_host="127.0.0.1",
            metrics_prom_exporter_port=0,
            metrics_lag_interval_millis=3_600_000,
        )
        broker = Broker(config, StoreConfig(store_path_root_dir=path))
        await broker.start()
        try:
            await fill(broker, asked.topics, asked.groups)
            await (with_a_producer(broker, asked) if asked.producer else measure(broker, asked))
        finally:
            await broker.stop()


async def fill(broker: Broker, topics: int, groups: int) -> None:
    names = [f"topic-{number}" for number in range(topics)]
    broker.topics.put_all(TopicConfig(name, 1, 1) for name in names)
    for number in range(groups):
        broker.groups.put(SubscriptionGroupConfig(f"group-{number}"))
    for number in range(groups):
        for name in names:
            broker.offsets.commit(f"group-{number}", name, 0, 0)
            broker.stats.group_get(f"group-{number}", name, 1, 100)
    for name in names:
        broker.stats.topic_put(name, 1, 100)


async def measure(broker: Broker, asked: argparse.Namespace) -> None:
    exporter = broker.exporter
    assert exporter is not None
    for what in ("first pass", "nothing moved"):
        began, hold = perf_counter(), LoopHold()
        sample = await exporter._lags.measure()  # type: ignore[union-attr]
        print(
            f"lag of {len(sample.lags):,} pairs, {what}: {sample.work_s * 1000:.0f} ms of work in {perf_counter() - began:.1f} s,"
            f" {hold.stop()}"
        )
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        await prepared(broker)
        await page(broker, session, "first")
        await page(broker, session, "nothing changed")
        await page(broker, session, "nothing changed")
        for number in range(0, asked.topics, 100):
            for group in range(asked.groups):
                broker.stats.group_get(f"group-{group}", f"topic-{number}", 1, 100)
        await page(broker, session, "a hundredth changed")
        if asked.all:
            for number in range(asked.topics):
                for group in range(asked.groups):
                    broker.stats.group_get(f"group-{group}", f"topic-{number}", 1, 100)
            await page(broker, session, "every counter changed")
            server = exporter.export.http
            assert server is not None
            server._maker._kept.clear()  # as if all had changed
            await page(broker, session, "everything changed")
            server._maker = PageMaker()  # as if none had been made
            exporter._shown._layouts.clear()
            server._prepared_size = 0
            exporter._prepare()
            await asyncio.sleep(1.0)
            await page(broker, session, "requested 1 s after the first one was begun")


SENDS_S = 20.0
SENDS_A_S = 200
SCRAPE_S = 5.0


def sends(address: str, waits_s: multiprocessing.Queue[list[float]]) -> None:
    """Sends one message after the other, each at its time; puts how long each took, from when it was due."""
    host, _, port = address.rpartition(":")
    template = SendTemplate(
        group="bench", queue=MessageQueue("topic-0", "", 0), default_topic="TBW102", default_queue_count=1
    )
    taken = []
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        began = perf_counter()
        for number in range(int(SENDS_S * SENDS_A_S)):
            due = began + number / SENDS_A_S
            time.sleep(max(0.0, due - perf_counter()))
            properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
            connection.sendall(
                template.frame(number, 0, 0, int(time.time() * 1000), 0, properties, b"x" * 100)
            )
            answer = connection.recv(65_536)
            while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
                answer += connection.recv(65_536)
            taken.append(perf_counter() - due)
    waits_s.put(taken)


async def with_a_producer(broker: Broker, asked: argparse.Namespace) -> None:
    exporter = broker.exporter
    assert exporter is not None
    await exporter._lags.measure()  # type: ignore[union-attr]
    await prepared(broker)
    host, port = exporter.address
    spawn = multiprocessing.get_context("spawn")
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        for is_scraped in (False, True) * 3:
            results = spawn.Queue()
            process = spawn.Process(target=sends, args=(broker.address, results))
            process.start()
            scrapes: list[float] = []
            while process.is_alive() and results.empty():
                if is_scraped:
                    for number in range(0, asked.topics, 100):
                        for group in range(asked.groups):
                            broker.stats.group_get(f"group-{group}", f"topic-{number}", 1, 100)
                    began = perf_counter()
                    async with session.get(
                        f"http://{host}:{port}/metrics", headers={"Accept-Encoding": "gzip"}
                    ) as answer:
                        await answer.read()
                    scrapes.append(perf_counter() - began)
                    await asyncio.sleep(SCRAPE_S)
                else:
                    await asyncio.sleep(0.2)
            taken = sorted(results.get())
            process.join()
            figures = ", ".join(
                f"{name} {taken[int(share * (len(taken) - 1))] * 1000:.2f}"
                for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0))
            )
            text = (
                f"{len(scrapes)} scrapes of {max(scrapes) * 1000:.0f} ms at most" if scrapes else "no scrapes"
            )
            print(f"{len(taken):,} sends, {text}: {figures} ms", flush=True)


async def prepared(broker: Broker) -> None:
    """What a broker does when it has measured many more pairs than before."""
    exporter = broker.exporter
    assert exporter is not None
    server = exporter.export.http
    began, hold = perf_counter(), LoopHold()
    server._prepared_size = 0
    exporter._prepare()
    await made(server)
    print(
        f"pre-rendered page: {server.page_cpu_s * 1000:.0f} ms of CPU in {perf_counter() - began:.1f} s, {hold.stop()}"
    )


async def made(server: HttpServer) -> None:
    while server._making is not None:  # noqa: ASYNC110  a bench looks, the server has no event for it
        await asyncio.sleep(0.01)


def forget(server: HttpServer) -> None:
    """So that the next page is made when it is requested, from the pieces of the last."""
    if server._again is not None:
        server._again.cancel()
    server._again = server._last = None


async def page(broker: Broker, session: aiohttp.ClientSession, what: str) -> None:
    exporter = broker.exporter
    assert exporter is not None
    host, port = exporter.address
    server = exporter.export.http
    began, hold = perf_counter(), LoopHold()
    async with session.get(f"http://{host}:{port}/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
        body = await answer.read()
    took_s, held = perf_counter() - began, hold.stop()
    await made(server)
    text = gzip.decompress(body)
    whole = "" if b"aerobee_page_complete{} 1" in text else "; not whole: the last families are left out"
    print(
        f"page, {what}: {text.count(10):,} lines, {len(text) / 1e6:.1f} MB, {len(body) / 1e6:.1f} MB packed:"
        f" {server.page_cpu_s * 1000:.0f} ms of CPU, {server._maker.made_count:,} pieces made, answered in {took_s * 1000:.0f} ms{whole},"
        f" {held}"
    )
    # Repeated scrapes get the previous page immediately.
    began = perf_counter()
    async with session.get(f"http://{host}:{port}/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
        body = await answer.read()
    print(f"  the one made ahead is answered in {(perf_counter() - began) * 1000:.0f} ms")
    assert b"aerobee_page_complete{} 1" in gzip.decompress(body)
    forget(server)


if __name__ == "__main__":
    asyncio.run(main())
