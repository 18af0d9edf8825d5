"""Messages of a shop: `dramatiq dramatiq_shop` in this directory processes them, `python dramatiq_shop.py` sends some."""

import os

import dramatiq

from aerobee.contrib.dramatiq import AerobeeBroker

NAMESERVER = os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")
dramatiq.set_broker(AerobeeBroker(NAMESERVER, namespace="dramatiq-shop"))


@dramatiq.actor(max_retries=3)
def reserve(article: str) -> None:
    print(f"{article} reserved", flush=True)


if __name__ == "__main__":
    reserve.send("bell")
    reserve.send_with_options(args=("saddle",), delay=1_000)  # the brokers keep it for a second
    print("sent")
