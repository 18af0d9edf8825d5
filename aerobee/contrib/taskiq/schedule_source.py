"""taskiq's schedule source: schedules that programs add and delete at run time, as records of a topic with one queue.

Every source reads the topic from its begin. The brokers delete old records with their other files, so the scheduler
writes a schedule again before its record expires. In order at one queue, so that a delete follows its add.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from taskiq import ScheduledTask, ScheduleSource

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ClientConfig
from aerobee.client.consumer.pull_consumer import PullConsumer
from aerobee.client.producer.producer import Producer
from aerobee.contrib.index_key import index_keys
from aerobee.contrib.new_topic import create_topic
from aerobee.contrib.taskiq.schedule_log import Change, ScheduleLog, encode_add, encode_delete
from aerobee.errors import AerobeeError, MalformedRecord, UsageError
from aerobee.message import Message, MessageQueue, check_topic_name

log = logging.getLogger(__name__)

READER_GROUP = "taskiq-schedule-readers"  # commits no offsets
PRODUCER_GROUP = "taskiq-schedules"
READ_WITHIN_S = 30.0  # longest time that one get_schedules() reads


class AerobeeScheduleSource(ScheduleSource):
    """`AerobeeScheduleSource("127.0.0.1:9876", topic="shop-schedules")`."""

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        topic: str = "taskiq-schedules",
        *,
        client: ClientConfig | None = None,
        renew_after_s: float = 86_400.0,
        create_topic: bool = True,
    ) -> None:
        """`renew_after_s`: age at which the scheduler writes a schedule again, well below the brokers' fileReservedTime.

        `create_topic`: create the topic, with one queue at one broker, when it does not exist. Opens nothing before
        startup().
        """
        check_topic_name(topic)
        if renew_after_s <= 0:
            raise UsageError(f"renew_after_s is {renew_after_s!r}: it must be a number of seconds above 0")
        self.topic = topic
        self._nameservers = nameservers
        self._client = client
        self._renew_after_s = renew_after_s
        self._create_topic = create_topic
        self._log = ScheduleLog()
        self._producer: Producer | None = None
        self._reader: PullConsumer | None = None
        self._queue: MessageQueue | None = None
        self._next_offset = 0

    async def startup(self) -> None:
        """Connect, and create the topic. Raises ConnectFailed when no NameServer answers."""
        if self._producer is not None:
            return
        producer = Producer(self._nameservers, PRODUCER_GROUP, client=self._client)
        reader = PullConsumer(self._nameservers, READER_GROUP, client=self._client)
        try:
            await producer.start()
            await reader.start()
            queue = await self._only_queue(reader)
            await reader.assign([queue])
            await reader.seek_to_begin(queue)
        except BaseException:
            await reader.close()
            await producer.close()
            raise
        self._log, self._next_offset = ScheduleLog(), await reader.begin_offset(queue)
        self._producer, self._reader, self._queue = producer, reader, queue

    async def _only_queue(self, reader: PullConsumer) -> MessageQueue:
        if self._create_topic:
            async with Admin(self._nameservers, client=self._client) as admin:
                if not await admin.topic_exists(self.topic):
                    brokers = sorted({each.broker_name for each in await admin.brokers()})
                    await create_topic(
                        admin, self.topic, queue_count=1, broker=brokers[0] if brokers else None
                    )
        queues = await reader.queues(self.topic)
        if len(queues) != 1:
            raise UsageError(
                f"the topic {self.topic} has {len(queues)} queues: schedules need one, where a delete follows its add; "
                f"create it with `aerobee topic create {self.topic} --queues 1 --broker NAME`"
            )
        return queues[0]

    async def shutdown(self) -> None:
        """Close the connections."""
        producer, self._producer = self._producer, None
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        if producer is not None:
            await producer.close()

    async def get_schedules(self) -> list[ScheduledTask]:
        """Every schedule that was added and not deleted, with all changes that were stored before the call.

        Schedules older than `renew_after_s` are written again. Raises AerobeeError when the topic cannot be read.
        """
        reader, queue = self._opened()
        end_offset = await reader.end_offset(queue)
        self._next_offset = max(self._next_offset, await reader.begin_offset(queue))
        end = time.monotonic() + READ_WITHIN_S
        restored: dict[str, None] = {}
        while self._next_offset < end_offset:
            if time.monotonic() > end:
                raise UsageError(
                    f"the schedules of {self.topic} are not read within {READ_WITHIN_S:g} s: "
                    f"at offset {self._next_offset} of {end_offset}"
                )
            for message in await reader.poll(1.0):
                self._next_offset = message.queue_offset + 1
                try:
                    void = self._log.apply(bytes(message.body), message.store_timestamp)
                except MalformedRecord as error:
                    log.warning("topic %s, offset %d: %s", self.topic, message.queue_offset, error)
                    continue
                if void is not None:
                    restored[void] = None
        for schedule_id in restored:
            await self._write(schedule_id, encode_delete(schedule_id))
        await self._renew()
        return [kept.schedule for kept in self._log.kept.values()]

    async def _renew(self) -> None:
        for schedule in self._log.older_than(round((time.time() - self._renew_after_s) * 1000)):
            try:
                await self._write(schedule.schedule_id, encode_add(schedule, Change.RENEW))
            except AerobeeError as error:
                log.warning("schedule %s is not renewed yet: %s", schedule.schedule_id, error)
                return

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Add a schedule, or replace the one with its id; a broker has it on return."""
        await self._write(schedule.schedule_id, encode_add(schedule))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule; a broker knows it on return, each scheduler at its next get_schedules()."""
        await self._write(schedule_id, encode_delete(schedule_id))

    async def post_send(self, task: ScheduledTask) -> None:
        """Delete a schedule for one time, which has been sent."""
        interval = getattr(task, "interval", None)  # taskiq has it from 0.12 on
        if task.time is not None and task.cron is None and interval is None:
            await self.delete_schedule(task.schedule_id)

    async def _write(self, schedule_id: str, record: bytes) -> None:
        if self._producer is None:
            raise UsageError("this schedule source is not connected: call `await source.startup()` first")
        await self._producer.send(
            Message(self.topic, record, keys=index_keys(schedule_id)), queue=self._queue
        )

    def _opened(self) -> tuple[PullConsumer, MessageQueue]:
        if self._reader is None or self._queue is None:
            raise UsageError("this schedule source is not connected: call `await source.startup()` first")
        return self._reader, self._queue
