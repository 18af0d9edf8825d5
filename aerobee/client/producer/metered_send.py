"""A send request that a producer's meter counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aerobee.client.base.metering import ClientMeter

T = TypeVar("T")


def metered(
    meter: ClientMeter | None,
    now: Callable[[], float],
    topic: str,
    sending: Awaitable[T],
    *,
    count: int = 1,
    began: float | None = None,
) -> Awaitable[T]:
    """`sending`, a request with `count` messages of a topic; awaited with a meter, its end is counted. `began` is its start by
    `now()`, by default when it is awaited."""
    return sending if meter is None else _counted(meter, now, topic, sending, count, began)


async def _counted(
    meter: ClientMeter,
    now: Callable[[], float],
    topic: str,
    sending: Awaitable[T],
    count: int,
    began: float | None,
) -> T:
    if began is None:
        began = now()
    try:
        result = await sending
    except BaseException as error:
        meter.send_failed(topic, error, count)
        raise
    meter.sent(topic, now() - began, count)
    return result
