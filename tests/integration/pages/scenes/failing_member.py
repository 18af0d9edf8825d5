"""A member of group shipping that fails at each message; stays."""

import asyncio
import os

from aerobee import PushConsumer


async def handle(message: object) -> None:
    raise ValueError("no such customer")


async def main() -> None:
    async with PushConsumer(
        os.environ["AEROBEE_NAMESRV_ADDR"], "shipping", subscriptions={"why-demo": "paid"}, handler=handle
    ):
        await asyncio.Event().wait()


asyncio.run(main())
