"""Messages that may still enter a queue without write permission: delayed messages, open transactions, messages delivered by POP.

A broker delivers such messages to their queue, whatever the topic's permission is by then. If the queue was
removed before, no consumer could read them. Aerobee's brokers list these messages. RocketMQ's brokers do not:
this module reads the undelivered part of the topics in which they wait (SCHEDULE_TOPIC_XXXX,
RMQ_SYS_TRANS_HALF_TOPIC), and uses the timer's count of a topic for each of its queues.
"""

from __future__ import annotations

from aerobee.client.admin.admin import Admin
from aerobee.client.consumer.broker_calls import begin_offset, committed_offset, end_offset
from aerobee.errors import RemoteError
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.codes import RequestCode
from aerobee.system_names import HALF_TOPIC, REVIVE_GROUP, REVIVE_PREFIX, SCHEDULE_TOPIC, TRANSACTION_GROUP

CHECK_POINT_TAG = "ck"
LEVEL_KEY = "scheduleMessageOffset_"
LEVELS = 18
# maximum number of messages that one check reads; if more are pending, the drain continues to wait
READ_MAX = 20_000
LIST_MAX = 1_000


class ArrivalCalls(Admin):
    """Messages that may still arrive in queues."""

    async def arrivals(self, topic: str, broker: str, address: str, queue_ids: range) -> str:
        """Reason why messages may still arrive in these queues of one broker; "" when nothing will."""
        for look in (self._timed, self._levels, self._transactions):
            reason = await look(topic, broker, address, queue_ids)
            if reason:
                return reason
        return ""

    async def invisible_in(self, group: str, topic: str, broker: str, queue_ids: range) -> int:
        """Messages of these queues that POP delivered and that are not acknowledged; 0 if the broker does not report them."""
        rows = await self.invisible_messages(group, topic, broker=broker)
        return sum(1 for row in rows or () if row.queue.queue_id in queue_ids)

    async def unsettled_pops(self, group: str, topic: str, broker: str, address: str) -> str:
        """Number of pending POP records, as text, at a broker that does not list invisible messages; records
        of all groups count.

        "" when there are none, and when the broker lists invisible messages of the group and topic:
        invisible_in() counts those.

        Check points and acknowledgements stay in the timer until the invisible time ends, and then in the
        revive log. Every delivered message has a check point there, an acknowledged one too.
        """
        if await self.invisible_messages(group, topic, broker=broker) is not None:
            return ""
        config = await self.broker_config(address)
        revive_log = REVIVE_PREFIX + config.get("brokerClusterName", "")
        waiting = await self._timer_count(address, revive_log)
        for queue_id in range(int(config.get("reviveQueueNum", "8"))):
            queue = MessageQueue(revive_log, broker, queue_id)
            # The group's offset is that of the last processed check point; acknowledgements behind it do not
            # change it.
            done = await committed_offset(self._session, REVIVE_GROUP, queue)
            begin = max(0, await begin_offset(self._session, queue)) if done is None else done + 1
            waiting += await self._check_points(queue, begin, await end_offset(self._session, queue), topic)
        return f"{waiting} records of POP are not settled at {broker}" if waiting else ""

    async def _check_points(self, queue: MessageQueue, begin: int, end: int, topic: str) -> int:
        """Check points of a topic in [begin, end) of a revive log's queue; with more than READ_MAX messages,
        all of them count.
        """
        if end - begin > READ_MAX:
            return end - begin
        count = 0
        while begin < end:
            messages, begin = await self.messages_from(queue, begin)
            for message in messages:
                if message.tag == CHECK_POINT_TAG:
                    fields = fastjson.loads_trusted(message.body, "a check point")
                    count += json_fields.text(fields, "t", "") == topic
        return count

    async def _timer_count(self, address: str, topic: str) -> int:
        """Messages of a topic in the timer, as the broker counts them."""
        answer = await self._call(address, RequestCode.GET_TIMER_METRICS)
        table = json_fields.mapping(fastjson.loads_trusted(answer.body, "TimerMetrics"), "timingCount")
        entry = table.get(topic)
        return max(0, json_fields.integer(entry, "count")) if isinstance(entry, dict) else 0

    async def _timed(self, topic: str, broker: str, address: str, queue_ids: range) -> str:
        try:
            found = await self.timers(topic=topic, count_max=LIST_MAX, broker=address)
        except RemoteError:
            count = await self._timer_count(address, topic)
            return f"{count} timer messages of {topic} wait at {broker}" if count > 0 else ""
        waiting = sum(1 for each in found.timers if each.queue_id in queue_ids)
        if waiting:
            return f"{waiting} timer messages of these queues wait at {broker}"
        return "" if found.is_whole else f"more than {LIST_MAX} timer messages of {topic} wait at {broker}"

    async def _levels(self, topic: str, broker: str, address: str, queue_ids: range) -> str:
        runtime = await self.broker_runtime(address)
        left = READ_MAX
        for level in range(1, LEVELS + 1):
            queue = MessageQueue(SCHEDULE_TOPIC, broker, level - 1)
            end = await end_offset(self._session, queue)
            delivered = runtime.get(f"{LEVEL_KEY}{level}", "").partition(",")[0]
            # The counters lack levels that have delivered nothing yet.
            begin = (
                int(delivered) if delivered.isdigit() else max(0, await begin_offset(self._session, queue))
            )
            reason, left = await self._waiting_in(queue, begin, end, topic, queue_ids, left)
            if reason:
                return reason
        return ""

    async def _transactions(self, topic: str, broker: str, address: str, queue_ids: range) -> str:
        try:
            found = await self.transactions(topic=topic, count_max=LIST_MAX, broker=address)
        except RemoteError:
            queue = MessageQueue(HALF_TOPIC, broker, 0)
            begin = await committed_offset(self._session, TRANSACTION_GROUP, queue) or 0
            end = await end_offset(self._session, queue)
            return (await self._waiting_in(queue, begin, end, topic, queue_ids, READ_MAX))[0]
        open_ones = sum(1 for each in found.transactions if each.queue_id in queue_ids)
        if open_ones:
            return f"{open_ones} transactions of these queues are open at {broker}"
        return (
            "" if found.total <= LIST_MAX else f"{found.total} transactions of {topic} are open at {broker}"
        )

    async def _waiting_in(
        self, queue: MessageQueue, begin: int, end: int, topic: str, queue_ids: range, left: int
    ) -> tuple[str, int]:
        """(reason, remaining number of messages to read): the reason is set if [begin, end) of an internal
        topic has a message for these queues.
        """
        while begin < end:
            if left <= 0:
                return f"more than {READ_MAX} messages wait in {queue.topic} at {queue.broker_name}", 0
            messages, following = await self.messages_from(queue, begin)
            for message in messages:
                real = message.properties.get("REAL_TOPIC"), message.properties.get("REAL_QID", "")
                if (
                    message.queue_offset < end
                    and real[0] == topic
                    and real[1].isdigit()
                    and int(real[1]) in queue_ids
                ):
                    return f"messages of these queues wait in {queue.topic} at {queue.broker_name}", left
            left -= max(1, len(messages))
            begin = following
        return "", left
