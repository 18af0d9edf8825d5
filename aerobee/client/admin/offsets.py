"""Admin calls that reset a group's offsets: plan, review the plan, then apply it queue by queue.

    plan = await admin.plan_offsets("group", "orders", OffsetTarget.time(ms))      # nothing has changed
    done = await admin.move_offsets("group", plan)

Each queue is moved by INVOKE_BROKER_TO_RESET_OFFSET (222) with its queue id and offset, so that members that are
online continue there with their next pull (or, at a broker with useServerSideResetOffset=false, when it pushes 220 to
them). At a broker that can only push and has no online member, the call commits the offset instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aerobee.client.admin.base import AdminCalls
from aerobee.client.consumer.broker_calls import commit_offset, offset_for_time
from aerobee.errors import ConsumerNotOnline, QueryNotFound, UsageError
from aerobee.message import MessageQueue
from aerobee.remoting.body.reset_offset import ResetOffsetBody
from aerobee.remoting.body.topic_stats import TopicStatsTable
from aerobee.remoting.codes import RequestCode

CALLS_AT_ONCE = 32
FOLLOW_WAIT_S = 5.0  # members commit a pushed offset after they have released the queue
FOLLOW_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class OffsetTarget:
    """Target of a reset. Create it with the class methods."""

    kind: Literal["earliest", "latest", "offset", "time", "relative"]
    """Kind of target, which gives `value` its meaning."""
    value: int = 0
    """Offset, timestamp in ms since the epoch, or number of messages, by `kind`."""

    @classmethod
    def earliest(cls) -> OffsetTarget:
        """The first message that is still stored."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> OffsetTarget:
        """The end of the queue: the backlog is skipped."""
        return cls("latest")

    @classmethod
    def offset(cls, offset: int) -> OffsetTarget:
        """This offset of each queue."""
        return cls("offset", offset)

    @classmethod
    def time(cls, timestamp_ms: int) -> OffsetTarget:
        """The first message stored at or after a time, ms since the epoch."""
        return cls("time", timestamp_ms)

    @classmethod
    def relative(cls, count: int) -> OffsetTarget:
        """Move by this number of messages in each queue, relative to the committed offset; a negative number moves
        back."""
        return cls("relative", count)


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One queue of a plan. `begin` and `end` bound the stored messages, `before` is the committed offset (None:
    none), `after` the new offset. `note` says why `after` differs from the requested offset.
    """

    queue: MessageQueue
    """Queue of the topic."""
    begin: int
    """Offset of the oldest stored message."""
    end: int
    """Offset after the newest stored message."""
    before: int | None
    """Committed offset of the group. None: the group has committed nothing."""
    after: int
    """Offset to which the plan moves the group."""
    note: str = ""
    """Why `after` differs from the requested offset. Empty: it does not."""

    @property
    def distance(self) -> int:
        """Number of skipped messages; negative: number of messages that are redelivered."""
        return self.after - (self.begin if self.before is None else max(self.before, self.begin))


class OffsetCalls(AdminCalls):
    """Read, reset and copy a group's offsets."""

    async def offsets(
        self, group: str, topic: str, *, queues: Collection[MessageQueue] | None = None
    ) -> tuple[OffsetMove, ...]:
        """The group's offset in each queue of a topic, as a plan without changes."""
        stats = await self._ends(topic)
        wanted = sorted(stats if queues is None else queues)
        missing = [queue for queue in wanted if queue not in stats]
        if missing:
            raise UsageError(f"topic {topic} has no queue {missing[0].broker_name}/{missing[0].queue_id}")
        gate = asyncio.Semaphore(CALLS_AT_ONCE)

        async def move_of(queue: MessageQueue) -> OffsetMove:
            async with gate:
                before = await self._committed(group, queue)
            begin, end = stats[queue]
            return OffsetMove(queue, begin, end, before, begin if before is None else before)

        return tuple(await asyncio.gather(*map(move_of, wanted)))

    async def plan_offsets(
        self,
        group: str,
        topic: str,
        target: OffsetTarget,
        *,
        queues: Collection[MessageQueue] | None = None,
        may_skip: bool = True,
    ) -> tuple[OffsetMove, ...]:
        """The plan that move_offsets applies. Offsets outside the queue's range are moved to its nearest end.

        `may_skip` false: no offset moves forward, so no unconsumed message is skipped.
        """
        gate = asyncio.Semaphore(CALLS_AT_ONCE)

        async def aim(move: OffsetMove) -> OffsetMove:
            async with gate:
                wanted = await self._target_of(move, target)
            after, note = min(max(wanted, move.begin), move.end), ""
            if after != wanted:
                note = f"{wanted} is not in the queue"
            if not may_skip and move.before is not None and after > move.before:
                after, note = min(move.before, move.end), "would skip messages"
            return replace(move, after=after, note=note)

        return tuple(await asyncio.gather(*map(aim, await self.offsets(group, topic, queues=queues))))

    async def plan_clone(self, source: str, target: str, topic: str) -> tuple[OffsetMove, ...]:
        """A plan that gives group `target` the offsets of group `source`; queues without an offset are left out."""
        wanted = {move.queue: move for move in await self.offsets(source, topic)}
        moves = []
        for move in await self.offsets(target, topic):
            copied = wanted.get(move.queue)
            if copied is None or copied.before is None:
                continue
            after = min(max(copied.before, move.begin), move.end)
            note = "" if after == copied.before else f"{copied.before} is not in the queue"
            moves.append(replace(move, after=after, note=note))
        return tuple(moves)

    async def move_offsets(self, group: str, moves: Sequence[OffsetMove]) -> tuple[OffsetMove, ...]:
        """Apply a plan; return the group's new offsets, read again from the brokers.

        A broker that pushes offsets learns the new offset when its members commit. The call waits FOLLOW_WAIT_S for
        that commit; then the move's `note` states that members have not committed, or that they continue at the
        previous offset. Raises the first refusal. Queues that were reset before a refusal keep their new offset: plan
        again and repeat.
        """
        addresses: dict[str, str] = {}
        for topic in {move.queue.topic for move in moves}:
            addresses.update(await self._topic_addresses(topic))
        gate = asyncio.Semaphore(CALLS_AT_ONCE)

        async def carry_out(move: OffsetMove) -> OffsetMove:
            async with gate:
                address = addresses[move.queue.broker_name]
                await self._move(address, group, move)
                now = await self._committed(group, move.queue)
                if now == move.before != move.after:
                    if not await self._pushes_resets(address):
                        return replace(move, note=f"members have gone on to {now} already")
                    now = await self._followed(group, move)
            if now == move.before != move.after:
                return replace(
                    move, after=move.before or 0, note="members were notified, but have not committed"
                )
            return replace(move, after=move.after if now is None else now)

        return tuple(await asyncio.gather(*map(carry_out, moves)))

    async def _move(self, address: str, group: str, move: OffsetMove) -> None:
        queue = move.queue
        fields = {
            "group": group,
            "topic": queue.topic,
            "timestamp": "0",  # brokers before 5.0 accept only times: repeat rather than skip
            "isForce": "true",
            "queueId": str(queue.queue_id),
            "offset": str(move.after),
        }
        try:
            answer = await self._call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        except ConsumerNotOnline:
            await commit_offset(self._session, group, queue, move.after)
            return
        moved = ResetOffsetBody.decode(answer.body).offset_table
        if moved.get(queue) != move.after:
            raise UsageError(
                f"broker {queue.broker_name} moved queue {queue.queue_id} of {queue.topic} to {moved.get(queue)} "
                f"instead of {move.after}: brokers before 5.0 take times only"
            )

    async def _pushes_resets(self, address: str) -> bool:
        """Whether a broker only notifies the members of a reset, instead of changing the group's offset itself."""
        answer = await self._call(address, RequestCode.GET_BROKER_CONFIG)
        return b"\nuseServerSideResetOffset=true" not in b"\n" + answer.body

    async def _followed(self, group: str, move: OffsetMove) -> int | None:
        """The group's offset as soon as it differs from the previous one, at the latest after FOLLOW_WAIT_S."""
        deadline = asyncio.get_running_loop().time() + FOLLOW_WAIT_S
        while (now := await self._committed(group, move.queue)) == move.before != move.after:
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(FOLLOW_POLL_S)
        return now

    async def _target_of(self, move: OffsetMove, target: OffsetTarget) -> int:
        if target.kind == "earliest":
            return move.begin
        if target.kind == "latest":
            return move.end
        if target.kind == "offset":
            return target.value
        if target.kind == "time":
            return await offset_for_time(self._session, move.queue, target.value)
        return (move.begin if move.before is None else move.before) + target.value

    async def _committed(self, group: str, queue: MessageQueue) -> int | None:
        address = await self._session.queue_address(queue)
        fields = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "setZeroIfNotFound": "false",
        }
        try:
            answer = await self._call(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        except QueryNotFound:
            return None
        return answer.integer("offset")

    async def _ends(self, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """First and next offset of each queue."""
        found: dict[MessageQueue, tuple[int, int]] = {}
        for _, address in await self._topic_addresses(topic):
            answer = await self._call(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            for queue, offsets in TopicStatsTable.decode(answer.body).offset_table.items():
                found[queue] = (max(0, offsets.min_offset), max(0, offsets.max_offset))
        return found
