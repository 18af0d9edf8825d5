"""Payments, of which some need another try and one is hopeless. Start `aerobee up` first."""

import asyncio
import os

from aerobee import (
    ConsumeFrom,
    ConsumerConfig,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    reject,
    retry,
)

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESERVER, "shop") as producer:
        for text in ("10 EUR", "20 EUR", "3 pigs"):
            await producer.send(Message("payments", text.encode(), keys=(text.replace(" ", "-"),)))

    paid: list[str] = []
    done = asyncio.Event()

    async def pay(message: ReceivedMessage) -> None:
        amount, currency = message.body.decode().split()
        if currency != "EUR":
            reject(f"we do not take {currency}")  # a dead letter, now
        if amount == "20" and message.reconsume_times == 0:
            retry("bank is busy", after=1)  # comes again after a second
        print(f"{amount} {currency} paid, try {message.reconsume_times + 1}")
        paid.append(amount)
        if len(paid) == 2:
            done.set()

    async with PushConsumer(
        NAMESERVER,
        "payers",
        subscriptions={"payments": "*"},
        handler=pay,
        config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
    ):
        await done.wait()


asyncio.run(main())
