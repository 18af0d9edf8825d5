"""Redelivers messages whose invisible time expired: reads the revive topic, stores copies in the retry topics
(PopReviveService).

Belongs to the event loop; one timer is set to the next revive time of all revive queues. A copy names its source record
(source_pointer.py), so copies made before a crash are not repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pop.check_point import CLOCK_SLACK_MS, CheckPoint
from aerobee.broker.pop.in_flight import InFlightTable
from aerobee.broker.pop.retry import retry_message, retry_topic_of
from aerobee.broker.pop.revive_log import REVIVE_QUEUES
from aerobee.broker.pop.revive_queue import ReviveQueue
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock, Timer, WallSteps, wall_wait_s
from aerobee.errors import MalformedFrame, MalformedRecord, RecordInvalid, StoreError
from aerobee.message import Record, decode_record, decode_records
from aerobee.remoting.body.pop_handle import topic_before_retry
from aerobee.store.log.source_pointer import source_pointer
from aerobee.store.log.stored_message import GetStatus
from aerobee.store.message_store import MessageStore
from aerobee.system_names import REVIVE_GROUP

log = logging.getLogger(__name__)

READS_PER_PASS = 8  # reads of 32 records each, then the event loop continues
REVIVALS_PER_PASS = 16  # check points
LOOK_AGAIN_S = 0.2  # while the timer is behind
ERROR_PAUSE_S = 1.0
SETTLE_INTERVAL_S = 1.0
RETRY_QUEUES = 1


class Reviver:
    """Reads all revive queues and redelivers expired messages."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topic: str,
        in_flight: InFlightTable,
        offsets: ConsumerOffsets,
        topics: TopicTable,
        groups: GroupTable,
        stats: BrokerStats,
        live: LiveConfig,
        clock: Clock,
        host: bytes,
        call_soon: Callable[[Callable[[], None]], object],
        delivered_until: Callable[[], int],
        copied_from: int,
    ) -> None:
        """`delivered_until`: the timer has delivered everything due before that time, ms. `copied_from`: unsettled
        copies of an earlier run are at or after this physical offset; -1: none are known."""
        self._store = store
        self._topic = topic
        self._in_flight = in_flight
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._live = live
        self._clock = clock
        self._steps = WallSteps(clock, CLOCK_SLACK_MS)
        self._host = host
        self._call_soon = call_soon
        self._delivered_until = delivered_until
        self._copied_from = copied_from
        self._copies: dict[str, set[int]] = {}  # retry topic -> records that an earlier run copied there
        self._starts: dict[int, int] = {}  # revive queue -> first offset of this run
        self._queues: dict[int, ReviveQueue] = {}
        self._timer: Timer | None = None
        self._soon = False
        self._running = False
        self.trouble = ""  # error of the last pass, while it is retried
        self.revived_count = 0
        self.record_count = 0  # number of records read since the start

    def start(self) -> None:
        """Start at the settled offset of the revive group. Call load() of the offsets first."""
        self._running = True
        for queue_id in range(REVIVE_QUEUES):
            settled = self._offsets.query(REVIVE_GROUP, self._topic, queue_id)
            self._queues[queue_id] = ReviveQueue(-1 if settled is None else settled)
            self._starts[queue_id] = self._store.max_offset(self._topic, queue_id)
        if self._offsets.counts_cut_off and self._copied_from >= 0:
            self._copied_from = min([self._copied_from, *self._first_unsettled()])
        self._run_soon()

    def _first_unsettled(self) -> Iterator[int]:
        """Physical offsets of the first unsettled records. After a truncation (cut_revivals.py), copies for them and
        for later records are behind them in the log."""
        for queue_id, queue in self._queues.items():
            low = max(queue.next_offset, self._store.min_offset(self._topic, queue_id))
            for record in self._records(self._topic, queue_id, low, low + 1):
                yield record.physical_offset

    def forget(self, copied_from: int) -> None:
        """Another broker has revived messages meanwhile: search for its copies. `copied_from` as in the constructor."""
        self._copied_from = copied_from
        self._copies.clear()
        self._queues.clear()

    def stop(self) -> None:
        """Cancel the timers; nothing is written."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def pending(self) -> int:
        """Number of check points that were read and are not settled."""
        return sum(map(len, self._queues.values()))

    @property
    def unread(self) -> int:
        """Number of records of the revive topic that are not read yet."""
        return sum(count for _, _, count in self._unread())

    def unread_by_queue(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Records not read yet, by the revive queue's id."""
        for queue_id, _, count in self._unread():
            yield (str(queue_id),), count

    def behind_ms_by_queue(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Age of the first record that was not read yet, ms, by the revive queue's id; 0 without one."""
        now_ms = self._clock.now_ms()
        for queue_id, next_offset, count in self._unread():
            stored_ms = self._store.store_time(self._topic, queue_id, next_offset) if count else -1
            yield (str(queue_id),), max(0, now_ms - stored_ms) if stored_ms > 0 else 0

    def _unread(self) -> Iterator[tuple[int, int, int]]:
        """Each revive queue with the offset of its first unread record and how many there are."""
        for queue_id, queue in self._queues.items():
            end = self._store.max_offset(self._topic, queue_id)
            yield queue_id, queue.next_offset, max(0, end - queue.next_offset)

    def on_appended(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A message became readable; only those of the revive topic matter."""
        if topic == self._topic and self._running:
            self._run_soon()

    def _run_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self._call_soon(self.run)

    def run(self) -> None:
        """Read new records, redeliver due messages, settle, and set the timer for the next ones."""
        self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._running:
            return
        self.trouble = ""
        try:
            again = self._pass()
        except StoreError as error:
            self.trouble = str(error)
            log.error("messages must be redelivered and cannot be stored: %s; trying again", error)
            self._arm(ERROR_PAUSE_S)
            return
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"
            # No record may stop the redelivery of all other messages: errors are logged each time, and
            # visible in the metrics.
            log.exception("messages could not be redelivered; trying again")
            self._arm(ERROR_PAUSE_S)
            return
        if again:
            self._run_soon()
            return
        due = [due_ms for queue in self._queues.values() if (due_ms := queue.next_due_ms()) is not None]
        if due:
            wait_s = wall_wait_s(self._clock, min(due))
            self._arm(wait_s if wait_s > 0 else LOOK_AGAIN_S)

    def _arm(self, seconds: float) -> None:
        self._timer = self._clock.call_later(seconds, self.run)

    def _pass(self) -> bool:
        """One pass over all queues. Returns whether there is more to do immediately."""
        again = False
        delivered_until = self._delivered_until()
        now_ms = self._clock.now_ms()
        if self._steps.went_back():
            for queue in self._queues.values():
                queue.clock_set_back(now_ms)
        for queue_id, queue in self._queues.items():
            again |= self._read(queue_id, queue)
            behind = queue.next_offset < self._store.max_offset(self._topic, queue_id)
            for _ in range(REVIVALS_PER_PASS):
                point = queue.due(now_ms, 0 if behind else delivered_until, self._in_flight.bits)
                if point is None:
                    break
                self._revive(point, old=point.revive_offset < self._starts[queue_id])
                queue.done(point)
                self._in_flight.revived(point.key)
            else:
                again = True
            self._settle(queue_id, queue)
        return again

    def _settle(self, queue_id: int, queue: ReviveQueue) -> None:
        settled = queue.settled
        if settled >= 0 and self._offsets.query(REVIVE_GROUP, self._topic, queue_id) != settled:
            self._offsets.commit(REVIVE_GROUP, self._topic, queue_id, settled)

    def _read(self, queue_id: int, queue: ReviveQueue) -> bool:
        """Continue reading. Returns whether records are left."""
        now_ms = self._clock.now_ms()
        for _ in range(READS_PER_PASS):
            if queue.is_full or queue.next_offset >= self._store.max_offset(self._topic, queue_id):
                return False
            result = self._store.get_messages(self._topic, queue_id, queue.next_offset, count_max=32)
            if result.status is not GetStatus.FOUND:
                if result.next_offset <= queue.next_offset:
                    return False
                queue.skip_to(result.next_offset)
                continue
            for record in decode_records(result.body, check_crc=False):
                self.record_count += 1
                try:
                    point = queue.take(record.queue_offset, record.tag, record.body, now_ms)
                except MalformedFrame as error:
                    log.error(
                        "%s queue %d offset %d is skipped: %s",
                        self._topic,
                        queue_id,
                        record.queue_offset,
                        error,
                    )
                    continue
                if point is not None and (bits := self._in_flight.bits(point.key)) is not None:
                    point.bit_map |= bits
            queue.skip_to(result.next_offset)
        return queue.next_offset < self._store.max_offset(self._topic, queue_id)

    # --- one check point

    def _revive(self, point: CheckPoint, *, old: bool) -> None:
        """Redeliver the unacknowledged messages of a check point. Raises StoreError."""
        left = point.unacked
        if not left:
            return
        if self._topics.get(point.topic) is None or self._groups.get(point.group) is None:
            log.info(
                "%d messages of %s are not redelivered: topic or group %s was deleted",
                len(left), point.topic, point.group,
            )  # fmt: skip
            return
        topic = retry_topic_of(point, v2=self._live.value.enable_retry_topic_v2)
        queue_nums = self._open_retry_topic(point, topic)
        done = self._copies_in(topic) if old else ()
        for offset in left:
            record = self._message(point, offset)
            if record is None or record.physical_offset in done:
                continue
            queue_id = record.queue_id if record.queue_id < queue_nums else 0
            message = retry_message(point, record, topic=topic, queue_id=queue_id, host=self._host)
            message.prepared_transaction_offset = source_pointer(record.physical_offset)
            try:
                result = self._store.append(message)
            except RecordInvalid as error:
                log.error(
                    "message %d of %s queue %d cannot be redelivered: %s",
                    offset, point.topic, point.queue_id, error,
                )  # fmt: skip
                continue
            self.revived_count += 1
            self._stats.topic_put(topic, 1, result.size)

    def _open_retry_topic(self, point: CheckPoint, topic: str) -> int:
        """Create the retry topic or add missing queues; return the number of its usable queues."""
        queue_nums = RETRY_QUEUES
        if self._live.value.use_separate_retry_queue:
            origin = self._topics.get(topic_before_retry(topic, point.group))
            queue_nums = RETRY_QUEUES if origin is None else max(RETRY_QUEUES, origin.write_queue_nums)
        self._topics.grow_internal(topic, queue_nums)
        for queue_id in range(queue_nums):
            if self._offsets.query(point.group, topic, queue_id) is None:
                self._offsets.commit(point.group, topic, queue_id, self._store.min_offset(topic, queue_id))
        return queue_nums

    def _message(self, point: CheckPoint, offset: int) -> Record | None:
        result = self._store.get_messages(point.topic, point.queue_id, offset, count_max=1)
        try:
            record = decode_record(result.body, check_crc=False) if result.status is GetStatus.FOUND else None
        except MalformedRecord as error:
            log.error("message %d of %s queue %d is broken: %s", offset, point.topic, point.queue_id, error)
            return None
        if record is None or record.queue_offset != offset:
            log.warning(
                "message %d of %s queue %d is deleted: it is not redelivered to group %s",
                offset, point.topic, point.queue_id, point.group,
            )  # fmt: skip
            return None
        return record

    def _copies_in(self, topic: str) -> set[int]:
        """Physical offsets of the records that an earlier run copied to a retry topic and may not have settled."""
        found = self._copies.get(topic)
        if found is None:
            found = self._copies[topic] = set()
            config = self._topics.get(topic)
            for queue_id in range(RETRY_QUEUES if config is None else config.read_queue_nums):
                found |= self._copies_in_queue(topic, queue_id)
        return found

    def _copies_in_queue(self, topic: str, queue_id: int) -> set[int]:
        found: set[int] = set()
        at, low = self._store.max_offset(topic, queue_id), self._store.min_offset(topic, queue_id)
        while self._copied_from >= 0 and at > low:
            stop, at = at, max(low, at - 32)
            records = self._records(topic, queue_id, at, stop)
            found.update(
                -1 - record.prepared_transaction_offset
                for record in records
                if record.prepared_transaction_offset < 0
            )
            if not records or records[0].physical_offset < self._copied_from:
                break
        return found

    def _records(self, topic: str, queue_id: int, at: int, stop: int) -> list[Record]:
        """A queue of a topic from `at` up to `stop`. One read may return less: it ends at a file's end, or at its size
        limit."""
        records: list[Record] = []
        while at < stop:
            result = self._store.get_messages(topic, queue_id, at, count_max=stop - at)
            if result.body:
                records += decode_records(result.body, check_crc=False)
            if result.next_offset <= at:
                break
            at = result.next_offset
        return records
