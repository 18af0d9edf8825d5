"""Number of messages of a durable queue that no worker has received."""

from __future__ import annotations

from aerobee.client.admin.admin import Admin
from aerobee.errors import RouteError, TopicNotExist
from aerobee.message import MessageQueue


async def ready_count(admin: Admin, topic: str) -> int:
    """Messages of `topic` and of its retry topic behind the pop position of the group of the same name.

    Invisible messages and those of a later ETA do not count; 0 for a topic that does not exist.
    """
    try:
        ends = await admin.topic_stats(topic)
    except (TopicNotExist, RouteError):
        return 0
    offsets: dict[MessageQueue, int] = {}
    count = 0
    for progress in (await admin.consumer_progress(topic)).queues:
        if progress.queue.topic == topic:
            offsets[progress.queue] = progress.consumer_offset
        else:
            count += max(0, progress.lag)
    for stats in ends:
        count += max(0, stats.max_offset - max(offsets.get(stats.queue, 0), stats.min_offset))
    return count
