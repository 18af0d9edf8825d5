"""Reads one range of a queue, batch by batch, with the client's pulls. Runs in an executor.

While the messages are stored, the result depends only on queue, begin and end. Pulls carry the subscription
and commit nothing. A pull without a reply is repeated at the master; ranges that are not in the master's
memory are read from the broker that it suggests. Between two batches no code runs here, but pulls are in
flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from aerobee.client.consumer.subscription import SQL_PREFIX, subscribe
from aerobee.client.session.session import Session
from aerobee.errors import AerobeeError, RemoteSystemError, RouteError, SystemBusy, remote_error
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import MASTER_ID, PULL_SUBSCRIPTION
from aerobee.spark.data_loss import RETENTION, SHORTER, Loss, report
from aerobee.spark.options import SourceOptions
from aerobee.spark.pull_window import Cell, PullWindow
from aerobee.spark.ranges import QueueRange
from aerobee.spark.row_codec import choose_rows
from aerobee.spark.rows import LaidOut

log = logging.getLogger(__name__)
T = TypeVar("T")
X = TypeVar("X")

BATCH_ROWS_MAX = 65_536  # maximum number of rows of one batch
BUSY_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The parameters of a task in addition to its range. `tags`: pushed-down tags; None: use the options'
    expression.
    """

    options: SourceOptions
    columns: tuple[str, ...]
    tags: frozenset[str] | None = None

    @property
    def expression(self) -> str:
        """The expression in the form of subscribe()."""
        if self.tags is not None:
            return " || ".join(sorted(self.tags))
        is_sql = self.options.expression_type != "TAG"
        return f"{SQL_PREFIX}{self.options.expression}" if is_sql else self.options.expression


def read_range(plan: ReadPlan, wanted: QueueRange) -> Iterator[LaidOut]:
    """The rows of a range in the order of their offsets, in batches of `batch_bytes` or BATCH_ROWS_MAX rows.

    Raises DataLost for lost messages if failOnDataLoss is true, TransportError when brokers are unreachable
    for `pollTimeoutMs`, RemoteError when they refuse.
    """
    with asyncio.Runner() as runner:
        reader = RangeReader(plan, wanted)
        runner.run(reader.start())
        try:
            while (batch := runner.run(reader.next_batch())) is not None:
                yield batch
        finally:
            runner.run(reader.close())


class RangeReader:
    """The pulls of one range."""

    def __init__(self, plan: ReadPlan, wanted: QueueRange) -> None:
        options = plan.options
        self._options = options
        self._range = wanted
        self._queue = wanted.queue
        self._subscription = subscribe(self._queue.topic, plan.expression, 0)
        self._is_filtered = self._subscription.expression != "*"
        self._session = Session(options.nameservers, config=options.client)
        self._rows = choose_rows(self._queue, plan.columns, self._subscription.tags)
        self._window = PullWindow(
            wanted.begin,
            wanted.end,
            cell_size=wanted.size if self._is_filtered else options.pull_count,
            in_flight_max=1 if self._is_filtered else options.pulls_in_flight,
            waiting_bytes_max=options.batch_bytes,
        )
        self._broker_id = MASTER_ID
        self._pulls: dict[asyncio.Task[None], Cell] = {}
        self._bodies: deque[tuple[bytes, int]] = deque()  # replies taken from the window, not laid out yet
        self._has_answer = asyncio.Event()

    async def start(self) -> None:
        """Find the broker. Raises RouteError, SystemBusy, TransportError."""
        await self._session.start()
        await self._retried(self._session.routes.refresh, self._queue.topic)

    async def close(self) -> None:
        """Cancel the pulls in flight, and disconnect."""
        for task in self._pulls:
            task.cancel()
        await asyncio.gather(*self._pulls, return_exceptions=True)
        await self._session.close()

    async def next_batch(self) -> LaidOut | None:
        """The next rows; None at the end of the range."""
        rows, options = self._rows, self._options
        while self._bodies or not self._window.is_done:
            self._has_answer.clear()
            for cell in self._window.asks():
                task = asyncio.create_task(self._pull(cell), name=f"pull-{cell.next_offset}")
                self._pulls[task] = cell
                task.add_done_callback(self._pulled)
            self._bodies.extend(self._window.take())
            found = bool(self._bodies)
            while self._bodies:
                body, offset_delta = self._bodies.popleft()
                rows.take(body, self._range.begin, self._range.end, offset_delta)
                if rows.size_bytes >= options.batch_bytes or rows.count >= BATCH_ROWS_MAX:
                    return rows.finish()
            # After replies were taken, the window may allow further pulls.
            if not found and not self._window.is_done:
                await self._has_answer.wait()
            self._raise_failures()
        return rows.finish() if rows.count else None

    def _pulled(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self._pulls.pop(task, None)
        self._has_answer.set()

    def _raise_failures(self) -> None:
        for task in self._pulls:
            if task.done() and not task.cancelled():
                task.result()

    async def _pull(self, cell: Cell) -> None:
        """One pull of a cell, and the handling of its reply."""
        offset = cell.next_offset
        answer = await self._retried(self._ask, cell)
        code = answer.code
        next_offset = answer.integer("nextBeginOffset")
        delta = answer.integer("offsetDelta", 0)
        self._broker_id = answer.integer("suggestWhichBrokerId", MASTER_ID)
        least = answer.integer("minOffset")
        gone_to = (
            least if least > offset else next_offset if code == ResponseCode.PULL_OFFSET_MOVED else offset
        )
        if code == ResponseCode.SUCCESS:
            if not self._is_filtered and gone_to > offset:
                self._lost(offset, min(gone_to, cell.end), RETENTION)
            self._window.answered(cell, max(next_offset, offset + 1), answer.body, delta)
        elif gone_to > offset:
            self._lost(offset, min(gone_to, cell.end), RETENTION)
            self._window.answered(cell, gone_to)
        elif next_offset > offset:
            if not self._is_filtered:
                self._lost(offset, min(next_offset, cell.end), RETENTION)
            self._window.answered(cell, next_offset)
        else:
            self._lost(min(offset, cell.end), cell.end, SHORTER)
            self._window.answered(cell, cell.end)

    def _lost(self, begin: int, end: int, cause: str) -> None:
        report([Loss(self._queue, begin, end, cause)], fail=self._options.fail_on_data_loss)

    async def _ask(self, cell: Cell) -> RemotingCommand:
        """One pull. A slave may lag, so messages that it lacks are requested from the master: only the master proves a loss.

        Raises RouteError while there is no master, and what _pull_at() raises.
        """
        name = self._session.routes.leader_of(self._queue)
        address = self._address()
        answer = await self._pull_at(address, cell)
        is_found = answer.code == ResponseCode.SUCCESS or (
            self._is_filtered and answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        )
        master = self._session.routes.address_of(name)
        if address == master or (is_found and answer.integer("minOffset") <= cell.next_offset):
            return answer
        if master is None:
            text = f"the master of broker {name} is not registered at any nameserver now, and its slave has no more"
            raise RouteError(self._queue.topic, text)
        return await self._pull_at(master, cell)

    async def _pull_at(self, address: str, cell: Cell) -> RemotingCommand:
        """One pull at this broker. Raises TransportError; RemoteError for codes that are no outcome of a pull."""
        queue, options = self._queue, self._options
        fields = {
            "consumerGroup": options.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(cell.next_offset),
            "maxMsgNums": str(min(options.pull_count, cell.end - cell.next_offset)),
            "sysFlag": str(PULL_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
            "subscription": self._subscription.expression,
            "expressionType": self._subscription.expression_type,
            "bname": queue.broker_name,
        }
        command = RemotingCommand(RequestCode.PULL_MESSAGE.value, fields)
        answer = await self._session.remoting.invoke(
            address, command, timeout_s=options.client.request_timeout_s
        )
        if answer.code in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            return answer
        if answer.code == ResponseCode.FLOW_CONTROL:
            raise SystemBusy(answer.code, answer.remark, address=address, request="PULL_MESSAGE")
        raise remote_error(
            answer.code, answer.remark, address=address, request="PULL_MESSAGE", opaque=answer.opaque
        )

    def _address(self) -> str:
        routes, name = self._session.routes, self._session.routes.leader_of(self._queue)
        address = routes.address_of(name, self._broker_id) or routes.any_address_of(name)
        if address is None:
            raise RouteError(self._queue.topic, f"broker {name} is not registered at any nameserver now")
        return address

    async def _retried(self, call: Callable[[X], Awaitable[T]], argument: X) -> T:
        """`call(argument)`, repeated for up to `pollTimeoutMs` while brokers are unreachable or busy."""
        clock = self._session.clock
        deadline = clock.monotonic() + self._options.poll_timeout_ms / 1000
        while True:
            try:
                return await call(argument)
            except AerobeeError as error:
                passes = error.retriable and not isinstance(error, RemoteSystemError)
                if not passes or clock.monotonic() >= deadline:
                    raise
                log.info("%s: asked again after %s", self._queue, error)
                self._broker_id = MASTER_ID
                await clock.sleep(BUSY_PAUSE_S)
                if error.route_stale:
                    await self._refresh_route()

    async def _refresh_route(self) -> None:
        try:
            await self._session.routes.refresh(self._queue.topic)
        except AerobeeError as error:
            log.info("route of topic %s: %s", self._queue.topic, error)
