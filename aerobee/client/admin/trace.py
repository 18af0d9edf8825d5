"""Admin calls that read message trace: the records of producers and consumers about one message."""

from __future__ import annotations

from aerobee.client.admin.messages import TIME_MAX_MS, MessageCalls
from aerobee.client.base.trace_record import TraceEvent, decode_events, timeline
from aerobee.errors import QueryNotFound, TopicNotExist
from aerobee.system_names import TRACE_TOPIC

TRACE_MESSAGES_MAX = 64  # per broker: the maximum result of one index query


class TraceCalls(MessageCalls):
    """Read traces."""

    async def trace(
        self,
        message_id_or_key: str,
        *,
        trace_topic: str = TRACE_TOPIC,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
    ) -> tuple[TraceEvent, ...]:
        """The trace records of a message (by its unique key) or of all messages with a key, oldest first.

        Empty when there are none: its clients do not trace, no producer has sent it, or the records have expired.
        Records reach the topic seconds after the event (RocketMQ's clients: up to 5 s).
        """
        try:
            found = await self.messages_by_key(
                trace_topic, message_id_or_key, count_max=TRACE_MESSAGES_MAX, begin_ms=begin_ms, end_ms=end_ms
            )
        except (QueryNotFound, TopicNotExist):
            return ()
        events = [event for message in found for event in decode_events(message.body, message.born_host[0])]
        return timeline(events, message_id_or_key)
