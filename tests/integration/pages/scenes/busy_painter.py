"""Receives a message of POP and works on it; stays."""

import asyncio
import os

from aerobee.client import SimpleConsumer


async def main() -> None:
    async with SimpleConsumer(
        os.environ["AEROBEE_NAMESRV_ADDR"], "painters", subscriptions={"popped": "*"}
    ) as consumer:
        while not await consumer.receive(count_max=1, invisible_s=60, wait_s=5):
            pass
        await asyncio.Event().wait()


asyncio.run(main())
