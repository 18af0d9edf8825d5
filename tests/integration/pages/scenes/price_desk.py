"""The answering side of docs/examples/request_reply.py alone; stays."""

import asyncio
import os

from aerobee import Producer, PushConsumer, ReceivedMessage

NAMESERVER = os.environ["AEROBEE_NAMESRV_ADDR"]


async def main() -> None:
    async with Producer(NAMESERVER, "prices") as producer:

        async def answer(question: ReceivedMessage) -> None:
            await producer.reply_to(question, b"42 EUR for " + question.body)

        async with PushConsumer(
            NAMESERVER, "price-desk", subscriptions={"price-questions": "*"}, handler=answer
        ):
            await asyncio.Event().wait()


asyncio.run(main())
