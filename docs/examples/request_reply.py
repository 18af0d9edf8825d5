"""A question and its answer over a topic: `python docs/examples/request_reply.py [NAMESERVER]`."""

import asyncio
import os

from aerobee import Admin, Message, Producer, PushConsumer, ReceivedMessage
from aerobee.errors import SendFailed


async def main(nameserver: str) -> None:
    async with Admin(nameserver) as admin:
        await admin.create_topic("price-questions", queue_count=2)
    async with Producer(nameserver, "prices") as producer:

        async def answer(question: ReceivedMessage) -> None:
            try:
                await producer.reply_to(question, b"42 EUR for " + question.body)
            except SendFailed as error:
                print("the requester timed out:", error)  # raising would have the question delivered again

        async with PushConsumer(
            nameserver, "price-desk", subscriptions={"price-questions": "*"}, handler=answer
        ) as desk:
            while not desk.owned:  # noqa: ASYNC110 - a first question must not come before the desk is open
                await asyncio.sleep(0.05)
            reply = await producer.request(Message("price-questions", b"a bicycle bell"), timeout_s=10)
            print(reply.body.decode())


asyncio.run(main(os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")))
