"""A member of a consumer group in a separate process, which a test may let leave (SIGTERM) or die (SIGKILL).

push_member.py NAMESRV TOPIC GROUP FILE. The file gets a line for each event, written before the handler returns:

    m QUEUE_ID QUEUE_OFFSET BODY     a message was handled
    o BROKER/QUEUE_ID ...            the queues that this member owns from now on, without those of the retry topic
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from aerobee.client import ClientConfig, ConsumeFrom, ConsumerConfig, PushConsumer
from aerobee.client.base.received import ReceivedMessage


async def main(namesrv: str, topic: str, group: str, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handle(message: ReceivedMessage) -> None:
        os.write(file, b"m %d %d %s\n" % (message.queue.queue_id, message.queue_offset, message.body))

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=1.0)
    async with PushConsumer(
        namesrv,
        group,
        subscriptions={topic: "*"},
        handler=handle,
        config=config,
        client=ClientConfig(heartbeat_s=5.0),
    ) as consumer:
        before = None
        while not stop.is_set():
            owned = sorted(
                f"{queue.broker_name}/{queue.queue_id}" for queue in consumer.owned if queue.topic == topic
            )
            if owned != before:
                os.write(file, f"o {' '.join(owned)}\n".encode())
                before = owned
            try:
                async with asyncio.timeout(0.05):
                    await stop.wait()
            except TimeoutError:
                pass
    os.write(file, b"o \n")


asyncio.run(main(*sys.argv[1:]))
