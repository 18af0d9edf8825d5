"""Messages for later, one of them taken back. Needs `aerobee up --set recallMessageEnable=true`."""

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta

from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, PushConsumer
from aerobee.message import Message

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    begin = time.time()
    async with Producer(NAMESERVER) as producer:
        await producer.send(Message("later", b"by level", delay_level=1))
        await producer.send(Message("later", b"by delay", deliver_after=timedelta(seconds=1.25)))
        await producer.send(Message("later", b"by time", deliver_at=datetime.now(UTC) + timedelta(seconds=2)))
        mistake = await producer.send(Message("later", b"mistake", deliver_after=3))
        await producer.recall("later", mistake.recall_handle)

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(NAMESERVER, "readers", subscriptions={"later": "*"}, config=config) as consumer:
        received = 0
        async for message in consumer:
            print(f"{message.body.decode()} after {(message.store_timestamp / 1000) - begin:.2f} s")
            message.ack()
            received += 1
            if received == 3:
                break


asyncio.run(main())
