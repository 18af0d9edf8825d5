"""Pulls one queue: one long poll after the other, as fast as its messages are processed.

Follows PullMessageService and PullAPIWrapper for one queue. At most one pull is pending at a time, and none while the
cache exceeds its bounds. The owner finishes messages at `process` and calls `space_freed()`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from aerobee.client.base.received import ReceivedMessage
from aerobee.client.consumer.process_queue import ProcessQueue
from aerobee.client.consumer.subscription import Subscription
from aerobee.client.session.session import Session
from aerobee.client.session.stale_routes import may_be_stale
from aerobee.errors import AerobeeError, RouteError, remote_error
from aerobee.message import MessageQueue
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import (
    MASTER_ID,
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)

log = logging.getLogger(__name__)

# sysFlag of a pull (PullSysFlag)

FLOW_CONTROL_PAUSE_S = 0.02
ANSWER_WAIT_S = 3.0  # maximum wait for a pull that carries an offset, before a newer one is committed
SPAN_UNBOUNDED = 1 << 62

Deliver = Callable[["QueuePull", list[ReceivedMessage]], None]
Moved = Callable[["QueuePull", int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """How a queue is pulled."""

    lite: bool  # LITE_PULL_MESSAGE, with the subscription in each request
    commits: bool  # pulls from a master carry the offset to be committed
    post_subscription: bool
    count_max: int
    bytes_max: int
    hold_s: float
    timeout_s: float
    cached_count_max: int
    cached_bytes_max: int
    span_max: int = SPAN_UNBOUNDED
    pause_after_error_s: float = 1.0
    interval_s: float = 0.0


class QueuePull:
    """One owned queue: its offsets, its cached messages, and the task that pulls."""

    def __init__(
        self,
        session: Session,
        group: str,
        queue: MessageQueue,
        next_offset: int,
        *,
        settings: PullSettings,
        subscription: Callable[[], Subscription],
        deliver: Deliver,
        moved: Moved,
    ) -> None:
        """`deliver` gets messages that match the subscription, already in `process`. `moved` is called when
        the broker reports that the offset does not exist and names the offset to continue at."""
        self.queue = queue
        self.process = ProcessQueue(next_offset)
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self._session = session
        self._group = group
        self._settings = settings
        self._subscription = subscription
        self._deliver = deliver
        self._moved = moved
        self._broker_id = MASTER_ID
        self._paused = False
        self.failure: AerobeeError | None = None  # of the newest pull; None after a success
        # Whether the broker had messages behind its last reply: it answers the next pull immediately.
        self._has_more = False
        # Offset after the last message of the queue, of the newest reply; -1 before the first one.
        self.max_offset = -1
        # Done when the broker answered the pull that carries a growing offset.
        self._carrying: asyncio.Future[None] | None = None
        self._ending = False
        self.space: asyncio.Future[None] | None = None  # set while a pull waits for space
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._session.tasks.spawn(
            self._run(), f"pull-{self.queue.topic}-{self.queue.broker_name}-{self.queue.queue_id}"
        )

    def stop(self) -> None:
        """Stop pulling. Results of running handlers are ignored from now on."""
        self.process.dropped = True
        if self._task is not None:
            self._task.cancel()

    async def halt(self) -> None:
        """Stop pulling; cached messages stay valid. On return the broker has the offset that a pull carried, or 3 s
        have passed: an offset that is committed now is not followed by an older one."""
        self._ending = True
        if self._carrying is not None:
            await asyncio.wait((self._carrying,), timeout=ANSWER_WAIT_S)
        if self._task is not None:
            self._task.cancel()

    def restart(self, next_offset: int) -> None:
        """Drop the cached messages and continue at `next_offset`."""
        self.stop()
        self.process = ProcessQueue(next_offset)
        self._has_more = self._ending = False
        self.start()

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.space_freed()

    def space_freed(self) -> None:
        """Messages were finished: a waiting pull checks the cache bounds again."""
        if self.space is not None and not self.space.done() and not self._must_wait():
            self.space.set_result(None)

    def _must_wait(self) -> bool:
        settings = self._settings
        return (
            self._paused
            or self._ending
            or self.process.is_full(
                count_max=settings.cached_count_max,
                bytes_max=settings.cached_bytes_max,
                span_max=settings.span_max,
            )
        )

    async def _run(self) -> None:
        clock = self._session.clock
        while True:
            while self._must_wait():
                self.space = asyncio.get_running_loop().create_future()
                await self.space
                self.space = None
            try:
                pause_s = await self._pull()
                if self.failure is not None:
                    self.failure = None
                    log.info("pulls of %s succeed again", self.queue)
            except AerobeeError as error:
                # Logged once, not with each further try until one succeeds.
                if self.failure is not None:
                    log.debug("pull of %s: %s", self.queue, error)
                else:
                    self._session.peers.trouble(log, error, "pull of %s: %s", self.queue, error)
                self.failure = error
                pause_s = self._settings.pause_after_error_s
                await self._after_error(error)
            if pause_s > 0:
                await clock.sleep(pause_s)

    async def _after_error(self, error: AerobeeError) -> None:
        self._broker_id = MASTER_ID
        if may_be_stale(error):
            try:
                await self._session.routes.refresh(self.queue.topic)
            except AerobeeError as failure:
                log.info("route of topic %s: %s", self.queue.topic, failure)

    def _address(self) -> tuple[str, bool]:
        """Return (address, whether it is the master's)."""
        routes = self._session.routes
        name = routes.leader_of(self.queue)
        address = routes.address_of(name, self._broker_id)
        if address is not None:
            return address, self._broker_id == MASTER_ID
        address = routes.any_address_of(name)
        if address is None:
            raise RouteError(self.queue.topic, f"broker {name} is not registered at any nameserver now")
        return address, address == routes.address_of(name, MASTER_ID)

    async def _pull(self) -> float:
        """One pull; returns how long to wait before the next one."""
        address, is_master = self._address()
        process = self.process
        request = self._request(is_master)
        carrying = self._carrying
        try:
            answer = await self._session.remoting.invoke(address, request, timeout_s=self._settings.timeout_s)
        finally:
            if carrying is not None:
                carrying.set_result(None)
        if self._session.peers.lost:
            self._session.peers.answered(address)
        if process is not self.process or self._ending:
            return 0.0  # restarted or released meanwhile
        self.last_pull_ms = self._session.clock.now_ms()
        code = answer.code
        if code == ResponseCode.SUCCESS:
            self._found(answer)
            return self._settings.interval_s
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            process.pulled_up_to(answer.integer("nextBeginOffset"))
            self.max_offset = answer.integer("maxOffset", -1)
            self._broker_id = answer.integer("suggestWhichBrokerId", MASTER_ID)
            return 0.0
        if code == ResponseCode.PULL_OFFSET_MOVED:
            next_offset = answer.integer("nextBeginOffset")
            why = (
                "the group was reset"
                if answer.remark == "OFFSET_RESET"
                else f"the broker does not have it ({answer.remark})"
            )
            log.warning(
                "%s: cannot continue at offset %d, %s; continuing at %d",
                self.queue,
                process.next_offset,
                why,
                next_offset,
            )
            process.dropped = True
            self.process = ProcessQueue(next_offset)
            self._moved(self, next_offset)
            # A broker that repeats the same answer must not cause a busy loop.
            return 0.0 if next_offset != process.next_offset else self._settings.pause_after_error_s
        if code == ResponseCode.FLOW_CONTROL:
            return FLOW_CONTROL_PAUSE_S
        if code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
            await self._session.heartbeat()  # the broker restarted, or has not seen our subscription yet
        raise remote_error(code, answer.remark, address=address, request="PULL_MESSAGE", opaque=answer.opaque)

    def _request(self, is_master: bool) -> RemotingCommand:
        settings, queue, process = self._settings, self.queue, self.process
        self._carrying = None
        subscription = self._subscription()
        flags = PULL_SUSPEND
        commit_offset = 0
        if settings.commits and is_master:
            commit_offset = process.commit_offset
            if commit_offset > 0 and self._may_carry(commit_offset):
                flags |= PULL_COMMIT_OFFSET
        fields = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(process.next_offset),
            "maxMsgNums": str(settings.count_max),
            "commitOffset": str(commit_offset),
            "suspendTimeoutMillis": str(round(settings.hold_s * 1000)),
            "subVersion": "0" if settings.lite else str(subscription.version),
            "expressionType": subscription.expression_type,
            "maxMsgBytes": str(settings.bytes_max),
            "bname": queue.broker_name,
        }
        if settings.lite or settings.post_subscription:
            flags |= PULL_SUBSCRIPTION
            fields["subscription"] = subscription.expression
        if settings.lite:
            flags |= PULL_LITE
            fields["ReqT"] = "0"
        fields["sysFlag"] = str(flags)
        code = RequestCode.LITE_PULL_MESSAGE if settings.lite else RequestCode.PULL_MESSAGE
        return RemotingCommand(code.value, fields)

    def _may_carry(self, commit_offset: int) -> bool:
        """Whether a pull may carry the offset to be committed.

        RocketMQ's brokers commit it in one of the threads that serve pulls, before they answer or hold the pull, so
        that it may be applied after an UPDATE_CONSUMER_OFFSET that left later. Hence only an offset that stays the
        same while this pull is unanswered, or one that is answered immediately: halt() waits for that.
        """
        if commit_offset == self.process.next_offset:
            return True
        if self._has_more:
            self._carrying = asyncio.get_running_loop().create_future()
        return self._has_more

    def _found(self, answer: RemotingCommand) -> None:
        process = self.process
        messages = self._session.codec.decode_messages(answer.body, self.queue)
        delta = answer.integer("offsetDelta", 0)
        if delta:
            # A part of a logical queue: its records contain physical queue offsets.
            for message in messages:
                message.queue_offset += delta
        wanted = process.put_all(messages)
        subscription = self._subscription()
        if subscription.tags:
            # A broker filters by the hash of a tag, which other tags may share.
            process.finish_all(
                message.queue_offset for message in wanted if not subscription.wants(message.tag)
            )
            wanted = [message for message in wanted if subscription.wants(message.tag)]
        process.pulled_up_to(answer.integer("nextBeginOffset"))
        self.max_offset = answer.integer("maxOffset", 0)
        self._has_more = self.max_offset > process.next_offset
        self._broker_id = answer.integer("suggestWhichBrokerId", MASTER_ID)
        if wanted:
            if self._session.meter is not None:
                self._session.meter.received(self.queue.topic, len(wanted))
            self._deliver(self, wanted)
