"""Send and consume with client metrics: `python docs/examples/client_metrics.py [NAMESERVER]`."""

import asyncio
import os

from prometheus_client import REGISTRY, generate_latest

from aerobee import ConsumeFrom, ConsumerConfig, Message, Producer, PushConsumer, ReceivedMessage
from aerobee.contrib.prometheus import AerobeeCollector

SHOWN = (
    "aerobee_client_sent_messages_total",
    "aerobee_client_consumed_messages_total",
    "aerobee_client_handler_seconds_count",
)
REGISTRY.register(AerobeeCollector())  # prometheus_client.start_http_server(8000) serves the page


async def main(nameserver: str) -> None:
    async with Producer(nameserver, "shop") as producer:
        for number in range(3):
            await producer.send(Message("metered", b"order %d" % number))

    left, done = 3, asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(nameserver, "billing", ["metered"], handle, config=config):
        await done.wait()
    for line in generate_latest(REGISTRY).decode().splitlines():
        if line.startswith(SHOWN) and 'topic="metered"' in line:
            print(line)


asyncio.run(main(os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")))
