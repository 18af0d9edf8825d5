"""Batches to a topic of type BatchCQ: stored whole, consumed one by one. Start `aerobee up` first."""

import asyncio
import os

from aerobee import ConsumeFrom, ConsumerConfig, Message, Producer, PushConsumer
from aerobee.client import Admin

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Admin(NAMESERVER) as admin:
        await admin.create_topic("readings", queue_count=1, attributes={"queue.type": "BatchCQ"})
    async with Producer(NAMESERVER, "sensors") as producer:
        for first in (0, 3):
            batch = [Message("readings", b"%d" % number) for number in range(first, first + 3)]
            print("stored at", [result.queue_offset for result in await producer.send_batch(batch)])

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(NAMESERVER, "plot", subscriptions={"readings": "*"}, config=config) as consumer:
        received = 0
        async for message in consumer:
            print(message.queue_offset, message.body.decode())
            message.ack()
            received += 1
            if received == 6:
                break


asyncio.run(main())
