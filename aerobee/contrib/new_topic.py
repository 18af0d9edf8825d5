"""Creates the topic and the consumer group of a framework's queue, and waits until the topic is routed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from aerobee.client.admin.admin import Admin
from aerobee.errors import RouteError, TopicNotExist

# Longest time until a NameServer routes a topic that brokers have confirmed, and the pause between two looks.
ROUTE_WITHIN_S, ROUTE_PAUSE_S = 10.0, 0.05


async def create_topic(
    admin: Admin,
    topic: str,
    *,
    queue_count: int,
    group: str = "",
    max_redeliveries: int = 16,
    attributes: Mapping[str, str] | None = None,
    broker: str | None = None,
) -> None:
    """Create the topic, and with `group` the consumer group before it; routed on return. `broker`: only there.

    A producer may have created the topic meanwhile by sending to it; with fewer queues its messages would be lost to
    consumers, so the topic keeps its queues.

    Raises RouteError when no NameServer routes it in time, another AerobeeError when a broker refuses.
    """
    if group:
        await admin.create_group(group, retry_count_max=max_redeliveries)
    await admin.create_topic(
        topic, queue_count=queue_count, attributes=attributes, broker=broker, only_new=True
    )
    end = time.monotonic() + ROUTE_WITHIN_S
    while True:
        try:
            await admin.topic_route(topic)
            return
        except (TopicNotExist, RouteError) as error:
            if time.monotonic() > end:
                raise RouteError(
                    topic,
                    f"no NameServer routes the new topic {topic} after {ROUTE_WITHIN_S:g} s: see the log of the brokers",
                ) from error
        await asyncio.sleep(ROUTE_PAUSE_S)


async def ensure_topic(
    admin: Admin, topic: str, *, queue_count: int, group: str = "", max_redeliveries: int = 16
) -> None:
    """create_topic() unless brokers have the topic."""
    if not await admin.topic_exists(topic):
        await create_topic(
            admin, topic, queue_count=queue_count, group=group, max_redeliveries=max_redeliveries
        )
