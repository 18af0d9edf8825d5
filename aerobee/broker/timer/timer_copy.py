"""A slave's side of copying timers: its timer files follow its master's with a delay of a second
(SlaveSynchronize.syncTimerCheckPoint).

RocketMQ's slaves put the messages of the timer topic into a separate wheel and copy how far the master's is delivered. Two wheels
may hold a message in different slots: it came late at one, or a clock was set back. Here the slave copies the master's
units, so that a slot is equal at both, and the checkpoint of the master's wheel is valid for the slave's
(timer_statement.py). A broker that becomes master continues as from its own checkpoint: neither the timer topic nor the
log is read from where the oldest timer waits.

Invariant: `checkpoint` is set only while the files match it exactly, and this log has reached the end that the master's
log had. A RocketMQ master sends no units: the slave records its read time, and builds a wheel when it becomes master
(Timers._finding_due).

While units are written it is None, and the older config/timercheck is valid: units of the timer log behind its position
are not used. A cut of the log ends both (Timers.log_cut, after_cut.py).

Memory is bounded by one answer (UNITS_MAX units): the units of each answer are written before the next request. So the
chain of a slot that the wheel's parts split has another order here than at the master, the oldest unit first within each
part. No reader depends on it: messages are ordered by due time and physical offset (waiting_slot.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from aerobee.broker.state.master_questions import MasterQuestions
from aerobee.broker.timer.pending_counts import PendingCounts, parse_counts
from aerobee.broker.timer.timer_saver import TimerSaver
from aerobee.broker.timer.timer_statement import (
    POSITION,
    SOURCE,
    UNITS_MAX,
    WALK,
    WHEEL_FIRST,
    TimerStatement,
    decode_statement,
)
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, MalformedFrame, StoreError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_checkpoint import (
    ROCKETMQ,
    CopiedFrom,
    TimerCheckpoint,
    decode_timer_checkpoint,
)
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.system_names import WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
# After an answer that has no units, or that begins the wheel. A wheel of empty slots has some 150 answers, and a master may
# send them for ever.
EMPTY_PAUSE_S = 0.02
ERROR_PAUSE_S = 10.0  # after an error of this broker's disk, the copy starts over
REACH_WAIT_S = 5.0  # for this log to reach the end that the master's log had
REACH_LOOK_S = 0.02
UNITS_PER_STEP = 512  # one to two milliseconds; then other tasks of the event loop run
COUNTS_INTERVAL_S = 10.0


class TimerCopy:
    """Copies a master's timer files while run() runs, which is while this broker follows a master. Belongs to the event
    loop.
    """

    def __init__(
        self,
        *,
        questions: MasterQuestions,
        store: MessageStore,
        files: TimerFiles,
        saver: TimerSaver,
        pending: PendingCounts,
        clock: Clock,
    ) -> None:
        self.checkpoint: TimerCheckpoint | None = None
        self._questions = questions
        self._store = store
        self._files = files
        self._saver = saver
        self._pending = pending
        self._clock = clock
        self._source = 0  # number of the timer log that the files copy; 0: the copy starts over
        self._position = 0  # behind the last of them, in the master's timer log
        self._walk = ""  # while the master's wheel is read: where its next part begins
        self._walked = 0  # units of the wheel that were read
        self._forgotten = 0  # number of forget() calls
        self._counts_at_s = float("-inf")
        self._trouble = ""

    def loaded(self, checkpoint: TimerCheckpoint | None) -> None:
        """The files were opened and are what `checkpoint` says."""
        self.forget()
        if (
            checkpoint is not None
            and (copied := checkpoint.copied_from) is not None
            and copied.source != ROCKETMQ
        ):
            self.checkpoint, self._source, self._position = checkpoint, copied.source, copied.position

    def forget(self) -> None:
        """The files are not, or no longer, a copy of the master's."""
        self.checkpoint, self._source = None, 0
        self._walk, self._walked = "", 0
        self._forgotten += 1

    def take(self) -> TimerCheckpoint | None:
        """The checkpoint from which this broker continues when it becomes master, with the files as they are; None when
        the files must be opened again.
        """
        checkpoint = self.checkpoint
        self.forget()
        return checkpoint

    async def run(self, master: str, is_following: Callable[[], bool]) -> None:
        """Copy from the broker at `master` until cancelled. It copies only while is_following(), that is, while this
        log is a verified prefix of the master's log.
        """
        if self.checkpoint is None:
            self.forget()  # an earlier run may have ended between two units
        self._trouble, self._counts_at_s = "", float("-inf")
        while True:
            pause_s = INTERVAL_S
            try:
                if is_following():
                    pause_s = await self._copy_next(master)
                self._trouble = ""
            except (StoreError, OSError) as error:
                self.forget()
                pause_s = ERROR_PAUSE_S
                self._say(master, error)
            except AerobeeError as error:
                self._say(master, error)
            except Exception:
                # The task's outermost edge: without a copy a promotion would read the whole log, and no operator would notice.
                self.forget()
                pause_s = ERROR_PAUSE_S
                log.exception("copying the timers of the master at %s failed; trying again", master)
            await self._clock.sleep(pause_s)

    def _say(self, master: str, error: Exception) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.warning("the timers of the master at %s are not copied: %s; trying again", master, error)

    async def _copy_next(self, master: str) -> float:
        """Copy one answer; seconds until the next request: fewer than INTERVAL_S when the master has more. Raises
        AerobeeError, OSError.
        """
        fields = {SOURCE: str(self._source), POSITION: str(self._position)}
        if self._walk:
            fields[WALK] = self._walk
        asked = RemotingCommand(RequestCode.GET_TIMER_CHECK_POINT, fields)
        known = self._forgotten
        reply = await self._questions.ask(master, asked)
        statement = decode_statement(reply.ext or {}, reply.body)
        if statement is None and SOURCE not in (reply.ext or {}):
            await self._copy_read_time(master, reply.body)
        if statement is None or not await self._has_reached(statement.log_end) or self._forgotten != known:
            return INTERVAL_S
        if statement.wheel == WHEEL_FIRST:
            await self._start_over(statement.source, statement.position)
        elif (statement.source, statement.position) != (self._source, self._position):
            asked_for = f"timer log {self._source} from {self._position} on"
            self.forget()
            raise MalformedFrame(
                f"{asked_for} was requested, {statement.source} from {statement.position} on came"
            )
        if not await self._take(statement):
            return INTERVAL_S
        if not statement.is_whole:
            return 0.0 if statement.units and statement.wheel != WHEEL_FIRST else EMPTY_PAUSE_S
        copied = CopiedFrom(source=self._source, position=self._position, log_end=statement.log_end)
        self.checkpoint = replace(
            statement.checkpoint, log_flushed=self._files.log.end, copied_from=copied, is_closed=False
        )
        await self._copy_counts(master)
        if self.checkpoint is not None:
            self._saver.save_copied(self.checkpoint, has_units=bool(statement.units))
        return INTERVAL_S

    async def _copy_read_time(self, master: str, body: bytes) -> None:
        """Record the time up to which a RocketMQ master has delivered its timers. Its deliveries do not say which
        message they deliver.
        """
        known = self._forgotten
        told, bounds = decode_timer_checkpoint(body), await self._questions.log_bounds(master)
        if (
            told is None
            or bounds is None
            or not await self._has_reached(bounds.end)
            or self._forgotten != known
        ):
            return
        if self._source != ROCKETMQ:
            await self._start_over(ROCKETMQ, 0)
        if self._source == ROCKETMQ:
            copied = CopiedFrom(source=ROCKETMQ, position=told.queue_offset, log_end=bounds.end)
            self._saver.save_read_time(replace(told, copied_from=copied))

    async def _has_reached(self, log_end: int) -> bool:
        """Wait until this log reaches the end that the master's log had; returns whether it did in time."""
        deadline = self._clock.monotonic() + REACH_WAIT_S
        while self._store.log.end < log_end:
            if self._clock.monotonic() >= deadline:
                return False
            await self._clock.sleep(REACH_LOOK_S)
        return True

    async def _start_over(self, source: int, position: int) -> None:
        """The master's timer log is another one than that of which these files have units."""
        self.forget()
        known = self._forgotten
        for _ in self._files.starting_over():
            await asyncio.sleep(0)
            if self._forgotten != known:
                return  # this broker leads, and has opened the files again
        self._saver.started_over()
        self._source, self._position = source, position

    async def _take(self, statement: TimerStatement) -> bool:
        """Write the units that are of use; False when the files are no copy any more. Raises StoreError."""
        if self._source != statement.source:
            return False
        units = statement.timer_units()
        if statement.wheel:
            self._count_walked(len(units))
            units.reverse()  # a chain is read from its newest unit on
        if units:
            self.checkpoint = None
        known = self._forgotten
        precision_ms, read_time_ms = self._files.precision_ms, statement.checkpoint.read_time_ms
        for begin in range(0, len(units), UNITS_PER_STEP):
            some = [
                unit
                for unit in units[begin : begin + UNITS_PER_STEP]
                if unit.slot_time + precision_ms > read_time_ms
            ]
            self._files.take(some, is_of_wheel=bool(statement.wheel))
            await asyncio.sleep(0)
            if self._forgotten != known:
                return False
        self._position, self._walk = statement.next_position, statement.walk
        return True

    def _count_walked(self, count: int) -> None:
        """A wheel has a unit of each pending message; a crash of a RocketMQ broker leaves some of them twice. Raises
        MalformedFrame.
        """
        queue = self._store.queues.get((WHEEL_TIMER_TOPIC, 0))
        messages = queue.max_offset if queue is not None else 0
        self._walked += count
        if self._walked > 2 * messages + UNITS_MAX:
            walked = self._walked
            self.forget()
            raise MalformedFrame(
                f"the master's timer wheel has {walked} units or more, and the timer topic {messages} messages"
            )

    async def _copy_counts(self, master: str) -> None:
        """How many messages wait for each topic: for people, so now and then is enough."""
        now_s = self._clock.monotonic()
        if now_s - self._counts_at_s < COUNTS_INTERVAL_S:
            return
        self._counts_at_s = now_s
        reply = await self._questions.ask(master, RemotingCommand(RequestCode.GET_TIMER_METRICS))
        try:
            self._pending.copy(parse_counts(reply.body))
        except ValueError as error:
            raise MalformedFrame(f"GET_TIMER_METRICS: {error}") from error
