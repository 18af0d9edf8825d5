"""A member of the ordered group packers whose first message takes for ever; stays."""

import asyncio
import os

from aerobee import Admin, ConsumeFrom, ConsumerConfig, PushConsumer

NAMESERVER = os.environ["AEROBEE_NAMESRV_ADDR"]


async def handle(message: object) -> None:
    await asyncio.Event().wait()


async def main() -> None:
    async with Admin(NAMESERVER) as admin:
        await admin.create_topic("parcels", queue_count=1)
    config = ConsumerConfig(orderly=True, consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(
        NAMESERVER, "packers", subscriptions={"parcels": "*"}, handler=handle, config=config
    ):
        await asyncio.Event().wait()


asyncio.run(main())
