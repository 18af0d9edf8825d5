"""Send numbered messages until a file appears; a line for each that was acknowledged, and for each that failed after all retries.

sender.py NAMESERVERS TOPIC PREFIX STOP_FILE
"""

import asyncio
import os
import sys

from aerobee.client import ClientConfig, Producer
from aerobee.errors import AerobeeError
from aerobee.message import Message

PAUSE_S = 0.05  # twenty a second: what is looked for is what goes wrong, not how much goes through


async def main(nameservers: str, topic: str, prefix: str, stop_file: str) -> None:
    number = 0
    async with Producer(nameservers, client=ClientConfig(route_refresh_s=1.0)) as producer:
        while not await asyncio.to_thread(os.path.exists, stop_file):
            body = f"{prefix}-{number}"
            number += 1
            try:
                await producer.send(Message(topic, body.encode()))
            except AerobeeError as error:
                print("failed", body, type(error).__name__, error, flush=True)
            else:
                print("sent", body, flush=True)
            await asyncio.sleep(PAUSE_S)
    print("end", flush=True)


asyncio.run(main(*sys.argv[1:]))
