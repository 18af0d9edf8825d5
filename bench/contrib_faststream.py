"""The FastStream application of contrib.py: `python contrib_faststream.py` runs the handler, with a count and a pause in
seconds as arguments it publishes.

Redis and NATS have a stream with a consumer group (NATS: a durable consumer), whose messages FastStream acknowledges, as it does
Aerobee's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from faststream import FastStream

URL = os.environ["BENCH_BROKER"]
CONCURRENT_SENDS = 50

broker: Any
if URL.startswith("redis:"):
    from faststream.redis import RedisBroker, StreamSub

    broker = RedisBroker(URL, logger=None)
    target = {"stream": "bench"}
    subscriber = broker.subscriber(stream=StreamSub("bench", group="bench", consumer="one", max_records=32))
elif URL.startswith("nats:"):
    from faststream.nats import NatsBroker, PullSub

    broker = NatsBroker(URL, logger=None)
    target = {"subject": "bench", "stream": "bench"}
    subscriber = broker.subscriber("bench", stream="bench", durable="bench", pull_sub=PullSub(batch_size=32))
else:
    from aerobee.contrib.faststream import AerobeeBroker

    broker = AerobeeBroker(URL.removeprefix("aerobee://").strip("/"), logger=None)
    target = {"topic": "bench"}
    subscriber = broker.subscriber("bench")
app = FastStream(broker)


@subscriber
async def note(sent_at: float) -> None:
    with open(os.environ["BENCH_NOTES"], "a", encoding="utf-8") as file:  # noqa: ASYNC230 - as Celery's task
        file.write(f"{time.time() - sent_at:.6f}\n")


async def send(count: int, pause_s: float) -> None:
    await broker.connect()
    sent = 0
    while sent < count:
        burst = 1 if pause_s else min(CONCURRENT_SENDS, count - sent)
        await asyncio.gather(*(broker.publish(time.time(), **target) for _ in range(burst)))
        sent += burst
        if pause_s:
            await asyncio.sleep(pause_s)
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(send(int(sys.argv[1]), float(sys.argv[2])) if len(sys.argv) > 1 else app.run())
