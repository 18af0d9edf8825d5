"""One message, read by each of the devices that it is for. Start `aerobee up --set enableLmq=true --set enableMultiDispatch=true`."""

import asyncio
import os

from aerobee import Message, MessageQueue, Producer, PullConsumer

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESERVER, "hub") as producer:
        for body, devices in (("lights on", ("kitchen", "hall")), ("lights off", ("hall",))):
            queues = ",".join(f"%LMQ%{device}" for device in devices)
            message = Message("devices", body.encode(), properties={"INNER_MULTI_DISPATCH": queues})
            broker = (await producer.send(message)).queue.broker_name

    async with PullConsumer(NAMESERVER, "device") as consumer:
        for device in ("kitchen", "hall"):
            queue = MessageQueue(f"%LMQ%{device}", broker, 0)
            await consumer.assign([queue])
            await consumer.seek(queue, 0)
            for message in await consumer.poll(timeout_s=5):
                print(f"{device}: {message.queue_offset} {message.body.decode()}")


asyncio.run(main())
