"""Book each payment once, however often its message comes: `python docs/examples/idempotent_consumer.py [NAMESERVER]`."""

import asyncio
import os

from sqlalchemy import Connection, create_engine, text

from aerobee import ConsumeFrom, ConsumerConfig, Message, Producer, PushConsumer, ReceivedMessage
from aerobee.client.dedup import deduplicated
from aerobee.client.dedup.sql import SqlDedup

engine = create_engine("sqlite:///bookings.db")
with engine.begin() as setup:
    setup.execute(text("CREATE TABLE IF NOT EXISTS bookings (what TEXT)"))


def book(message: ReceivedMessage, connection: Connection) -> None:
    connection.execute(text("INSERT INTO bookings VALUES (:what)"), {"what": message.body.decode()})


async def main(nameserver: str) -> None:
    async with Producer(nameserver) as producer:
        for _ in range(2):  # the second one is a repetition: it has the same business key
            await producer.send(Message("transfers", b"10 EUR to Ada", keys=("payment-1",)))
    seen = asyncio.Queue[str]()
    handle = deduplicated(SqlDedup(engine), "bookkeepers", book, key=lambda message: message.keys[0])

    async def consume(message: ReceivedMessage) -> None:
        await handle(message)
        seen.put_nowait(message.message_id)

    async with PushConsumer(
        nameserver,
        "bookkeepers",
        subscriptions={"transfers": "*"},
        handler=consume,
        config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
    ):
        received = [await seen.get(), await seen.get()]
    with engine.connect() as connection:
        booked = [row[0] for row in connection.execute(text("SELECT what FROM bookings"))]
    print(f"{len(received)} messages received, {len(booked)} booked: {booked}")


asyncio.run(main(os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")))
