"""The copy of a message that a group did not acknowledge in time, for its redelivery (PopReviveService.reviveRetry).
Core."""

from __future__ import annotations

from aerobee.broker.pop.check_point import CheckPoint
from aerobee.message import RETRY_PREFIX, Record, encode_properties, next_try
from aerobee.remoting.body.pop_handle import retry_topic_v1, retry_topic_v2
from aerobee.store.log.stored_message import StoredMessage

ORIGIN_GROUP = "ORIGIN_GROUP"
FIRST_POP_TIME = "1ST_POP_TIME"


def retry_topic_of(point: CheckPoint, *, v2: bool) -> str:
    """Target topic of a check point's messages: messages of a retry topic stay there."""
    if point.topic.startswith(RETRY_PREFIX):
        return point.topic
    return (retry_topic_v2 if v2 else retry_topic_v1)(point.group, point.topic)


def retry_message(
    point: CheckPoint, record: Record, *, topic: str, queue_id: int, host: bytes
) -> StoredMessage:
    """The copy of a message for its next try: counts one more try, unless the check point was suspended; its born host
    is this broker."""
    properties = dict(record.properties)
    properties.setdefault(FIRST_POP_TIME, str(point.pop_time))
    properties.setdefault(ORIGIN_GROUP, point.group)
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=encode_properties(properties).encode(errors="surrogateescape"),
        born_host=host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        reconsume_times=record.reconsume_times if point.suspend else next_try(record.reconsume_times),
    )
