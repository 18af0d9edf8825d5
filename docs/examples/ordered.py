"""Orders of three customers, each customer's in order. Start `aerobee up` and `aerobee topic create customer-orders` first."""

import asyncio
import os

from aerobee import (
    Blocked,
    ConsumeFrom,
    ConsumerConfig,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    retry,
)

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")
STEPS = ("created", "paid", "shipped")
CONFIG = ConsumerConfig(
    orderly=True,  # one message of a queue at a time, under a lock at the broker
    consume_from=ConsumeFrom.FIRST,
    suspend_s=0.2,  # pause before a failed message is retried at its offset
    retry_count_max=3,  # then it becomes a dead-letter message and the queue continues
    blocked=Blocked.DEAD_LETTER,  # Blocked.WAIT: nothing passes it, ever
)


async def main() -> None:
    async with Producer(NAMESERVER, "shop") as producer:
        for step in STEPS:
            for customer in ("ann", "ben", "cleo"):
                message = Message("customer-orders", f"{customer} {step}".encode())
                await producer.send(message, message_group=customer)  # one queue

    left = len(STEPS) * 3
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal left
        text = message.body.decode()
        if text == "ben paid" and message.reconsume_times == 0:
            print(f"queue {message.queue.queue_id}: {text}: bank is busy")
            retry("bank is busy", after=0.5)
        print(f"queue {message.queue.queue_id}: {text}")
        left -= 1
        if not left:
            done.set()

    async with PushConsumer(
        NAMESERVER, "warehouse", subscriptions={"customer-orders": "*"}, handler=handle, config=CONFIG
    ):
        await done.wait()


asyncio.run(main())
