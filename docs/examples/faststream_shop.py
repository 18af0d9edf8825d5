"""Services of a shop: `faststream run faststream_shop:app`, or `python faststream_shop.py`, runs them in this directory;
`python faststream_shop.py order` sends an order."""

import asyncio
import os
import sys

from faststream import FastStream
from pydantic import BaseModel

from aerobee.contrib.faststream import AerobeeBroker, AerobeeResponse

broker = AerobeeBroker(os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876"))
app = FastStream(broker)


class Order(BaseModel):
    customer: str
    article: str


@broker.subscriber("shop-orders", group="warehouse", tag="new")
@broker.publisher("shop-parcels")
async def pack(order: Order) -> AerobeeResponse:
    """A crash redelivers the order, first after 10 s; the 17th sends it to the dead letters."""
    return AerobeeResponse(f"{order.article} for {order.customer}", message_group=order.customer)


@broker.subscriber("shop-parcels", group="dispatch", ordered=True)
async def dispatch(parcel: str) -> None:
    """The parcels of a customer one after the other."""
    print(f"{parcel} sent", flush=True)


@broker.subscriber("shop-prices", group="prices")
async def price(article: str) -> int:
    return len(article) * 100


async def order() -> None:
    async with AerobeeBroker(broker.config.nameservers) as client:
        await client.publish(Order(customer="Ada", article="bell"), "shop-orders", tag="new")
        await client.publish(Order(customer="Ada", article="lamp"), "shop-orders", tag="new", delay=1)
        answer = await client.request("saddle", "shop-prices", timeout=30)
        print(await answer.decode())


if __name__ == "__main__":
    asyncio.run(order() if sys.argv[1:] == ["order"] else app.run())
