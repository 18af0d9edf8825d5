"""A member that gets every price, and resumes where its last run stopped. Start `aerobee up` first.

python broadcast.py [COUNT]: end after COUNT prices.
"""

import asyncio
import os
import sys

from aerobee import ConsumeFrom, ConsumerConfig, MessageModel, PushConsumer

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")
CONFIG = ConsumerConfig(model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST)


async def main(count: int) -> None:
    async with PushConsumer(
        NAMESERVER, "price-boards", subscriptions={"prices": "*"}, config=CONFIG
    ) as consumer:
        async for message in consumer:
            print(message.body.decode(), flush=True)
            count -= 1
            if not count:
                message.ack()
                break


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
