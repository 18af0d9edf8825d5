"""A worker for Kubernetes: SIGTERM lets running handlers finish, and everything else goes to other workers."""

import asyncio
import os
import signal

from aerobee import ConsumeFrom, ConsumerConfig, PushConsumer, ReceivedMessage

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")


async def handle(message: ReceivedMessage) -> None:
    print("begin", message.body.decode(), flush=True)
    await asyncio.sleep(float(os.environ.get("WORK_S", "1")))
    print("done", message.body.decode(), flush=True)


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, concurrency=4, drain_s=25)
    async with PushConsumer(
        NAMESERVER, "resizers", subscriptions={"images": "*"}, handler=handle, config=config
    ):
        await stop.wait()


asyncio.run(main())
