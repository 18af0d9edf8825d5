"""Jobs by POP: received, put off, acknowledged, given up. Start `aerobee up` and `aerobee topic create jobs --queues 2` first."""

import asyncio
import os

from aerobee import Message, Producer
from aerobee.client import SimpleConsumer

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESERVER, "planner") as producer:
        for name in ("resize", "encode", "broken", "forgotten"):
            await producer.send(Message("jobs", name.encode()))

    async with SimpleConsumer(NAMESERVER, "workers", subscriptions={"jobs": "*"}) as consumer:
        left = 4
        while left:
            for job in await consumer.receive(count_max=2, invisible_s=3, wait_s=5):
                name, tries = job.body.decode(), job.reconsume_times
                print(f"{name}, try {tries + 1}, from {job.pop_queue.topic}")
                if name == "encode" and not tries:
                    await consumer.change_invisible(job, 1)  # not now: again in a second
                elif name == "broken" and tries:
                    await consumer.dead_letter(job, "it fails whatever we do")
                    left -= 1
                elif name in ("broken", "forgotten") and not tries:
                    pass  # neither acknowledged nor put off: it comes again after its 3 s
                else:
                    await consumer.ack(job)
                    left -= 1


asyncio.run(main())
