"""Sends of a migration."""

from __future__ import annotations

import time

from tests.interop.rocketmq import (
    Broker,
    call,
)


def send_delayed(broker: Broker, topic: str) -> None:
    """A message with a delay of a minute: it is stored by one product and delivered by the other."""
    ext = {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(int(time.time() * 1000)), "h": "0",
        "i": "UNIQ_KEY\x01LATE\x02DELAY\x015\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    header, _ = call(broker.address, 310, ext, b"late")
    assert header["code"] == 0, header
