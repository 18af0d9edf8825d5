"""A topic with one lite topic for each user. Start `aerobee up --set enableLmq=true --set enableMultiDispatch=true`."""

import asyncio
import os

from aerobee import LiteConsumer, Message, Producer
from aerobee.client import Admin

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Admin(NAMESERVER) as admin:
        await admin.create_topic("sessions", queue_count=2, attributes={"message.type": "LITE"})
        await admin.create_group("agents", attributes={"lite.bind.topic": "sessions"})
    async with Producer(NAMESERVER, "site") as producer:
        for user, text in (("anna", "hello"), ("ben", "hi"), ("anna", "more")):
            await producer.send(Message("sessions", text.encode()), lite_topic=user)

    async with LiteConsumer(NAMESERVER, "agents", "sessions", ["anna"]) as consumer:
        for message in await consumer.receive():
            print(f"{message.lite_topic}: {message.body.decode()}")
            await consumer.ack(message)


asyncio.run(main())
