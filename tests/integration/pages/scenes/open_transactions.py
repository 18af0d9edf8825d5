"""Leaves transactions open, one for each number; with --stay their producer stays and knows nothing of them."""

import asyncio
import os
import sys

from aerobee import Message, TransactionProducer, TransactionState


def checker(message: object) -> TransactionState:
    return TransactionState.UNKNOWN


# The broker asks by itself later than a page takes on the slowest machine, so that the checks shown are the page's own.
IMMUNITY_S = 600


async def main(numbers: list[str], stay: bool) -> None:
    async with TransactionProducer(os.environ["AEROBEE_NAMESRV_ADDR"], "shop", checker=checker) as producer:
        for number in numbers:
            message = Message("paid", f"order {number}".encode(), keys=(f"order-{number}",))
            async with producer.transaction(message, immunity_s=IMMUNITY_S) as transaction:
                transaction.leave_open()
        if stay:
            await asyncio.Event().wait()


asyncio.run(main([word for word in sys.argv[1:] if word != "--stay"], "--stay" in sys.argv))
