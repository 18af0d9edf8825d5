import asyncio
import os

from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, PushConsumer
from aerobee.message import Message

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESERVER) as producer:
        for number in range(3):
            result = await producer.send(
                Message("orders", f"order {number}".encode(), tag="new"), message_group="customer-7"
            )
            print("sent", result.message_id, "to queue", result.queue.queue_id)

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(
        NAMESERVER, "billing", subscriptions={"orders": "new"}, config=config
    ) as consumer:
        received = 0
        async for message in consumer:
            print("received", message.body.decode(), "with tag", message.tag)
            message.ack()
            received += 1
            if received == 3:
                break


asyncio.run(main())
