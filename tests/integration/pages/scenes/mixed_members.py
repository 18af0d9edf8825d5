"""Two members of one group that ask for different tags, in one process; stays."""

import asyncio
import os

from aerobee import ClientConfig, PushConsumer

NAMESERVER = os.environ["AEROBEE_NAMESRV_ADDR"]


async def ignore(message: object) -> None:
    pass


async def main() -> None:
    async with (
        PushConsumer(
            NAMESERVER,
            "mixed",
            subscriptions={"stocks": "home"},
            handler=ignore,
            client=ClientConfig(instance="1#1"),
        ),
        PushConsumer(
            NAMESERVER,
            "mixed",
            subscriptions={"stocks": "stationery"},
            handler=ignore,
            client=ClientConfig(instance="2#2"),
        ),
    ):
        await asyncio.Event().wait()


asyncio.run(main())
