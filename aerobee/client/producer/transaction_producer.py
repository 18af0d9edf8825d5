"""Sends messages that become visible together with local work: a half message first, then commit or rollback.

Follows TransactionMQProducer. When the end request is lost, or this process dies, the broker sends a check to any live
producer of the group, whose checker answers. The checker must therefore read the result of the local work from durable
data, for example a database.

    async def checker(message):      # called in any process of the group
        return TransactionState.COMMIT if await orders.has(message.keys[0]) else TransactionState.ROLLBACK

    async with TransactionProducer("127.0.0.1:9876", "orders", checker=checker) as producer:
        async with producer.transaction(Message("paid", b"...", keys=("o-17",))) as transaction:
            await orders.pay("o-17", transaction.transaction_id)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Self

from aerobee.client.base.checks import check_handler
from aerobee.client.base.config import ClientConfig, ProducerConfig
from aerobee.client.base.handler_errors import is_of_handler
from aerobee.client.base.handler_threads import HandlerThreads, in_threads, is_plain
from aerobee.client.base.observer import SendObserver
from aerobee.client.base.received import ReceivedMessage, decode_stored_messages
from aerobee.client.base.results import SendResult, SendStatus
from aerobee.client.base.trace_record import TracedType, TraceEvent, TraceKind
from aerobee.client.producer.message_group import Selector
from aerobee.client.producer.producer import Producer
from aerobee.client.producer.publish_info_table import target_of
from aerobee.client.producer.transaction import (
    EndedTransactions,
    TransactionResult,
    TransactionState,
    end_fields,
    half_of,
    physical_offset_of,
)
from aerobee.client.serialize.serializer import Serializer
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, ConfigError, MalformedFrame, RemoteError, SendFailed, UsageError
from aerobee.message import TRANSACTION_PREPARED, Message, MessageQueue
from aerobee.network import Network
from aerobee.property_names import PRODUCER_GROUP, TRAN_MSG
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

# Result of an executor or a checker; None is UNKNOWN.
Verdict = TransactionState | None
Executor = Callable[[Message, Any], Verdict | Awaitable[Verdict]]
Checker = Callable[[ReceivedMessage], Verdict | Awaitable[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Settings for ending transactions and answering checks."""

    end_timeout_s: float = 3.0
    """Longest wait for the broker's confirmation of a commit or rollback, in seconds."""
    confirm: bool = True
    """Wait for that confirmation. False: send the end without waiting, as RocketMQ's clients do."""
    check_concurrency: int = 16
    """Maximum number of checker calls that run at the same time."""
    check_queue_max: int = 2_000
    """Maximum number of checks that wait for the checker. Further checks are dropped, and the broker repeats them."""
    remembered_max: int = 10_000
    """Number of ended transactions whose checks are answered without the checker."""

    def __post_init__(self) -> None:
        for name in ("end_timeout_s", "check_concurrency", "check_queue_max", "remembered_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"transaction.{name} is {getattr(self, name)!r}: must be above 0")


class TransactionProducer(Producer):
    """A Producer that can also send in transactions. `async with TransactionProducer(..., checker=...) as producer`."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str,
        *,
        checker: Checker,
        executor: Executor | None = None,
        transactions: TransactionConfig | None = None,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        random: Random | None = None,
        trace: bool = False,
        observers: Sequence[SendObserver] = (),
        serializer: Serializer | None = None,
    ) -> None:
        """`checker(message)` returns the result of the local work of a transaction of this group, `executor(message,
        argument)` does the work in send_in_transaction(). Both may be plain or async. A plain checker runs in one of at most
        `check_concurrency` threads of this producer and may block; a plain executor runs in the event loop and must not
        block.
        """
        super().__init__(
            nameservers,
            group,
            config=config,
            client=client,
            clock=clock,
            network=network,
            random=random,
            trace=trace,
            observers=observers,
            serializer=serializer,
        )
        self.transactions = transactions or TransactionConfig()
        if checker is None:
            raise UsageError("checker is None: brokers call it for the outcome of a transaction")
        check_handler(checker, "checker")
        check_handler(executor, "executor", ("message", "argument"))
        self._threads = HandlerThreads(f"aerobee-checker-{group}", self.transactions.check_concurrency)
        self._checker = in_threads(checker, self._threads) if is_plain(checker) else checker
        self._executor = executor
        self._ended = EndedTransactions(self.transactions.remembered_max)
        self._checks = asyncio.Semaphore(self.transactions.check_concurrency)
        self._waiting_checks = 0

    async def start(self) -> None:
        """As Producer.start(); brokers can then send checks of transactions that have no outcome yet."""
        self._session.handlers[RequestCode.CHECK_TRANSACTION_STATE.value] = self._asked
        await super().start()
        # A restarted producer must receive checks before its first send. The template's route names every
        # broker that creates topics; as in RocketMQ's client, other brokers learn of this producer by its
        # first message.
        self._session.routes.watch((self.config.default_topic,))
        self._session.tasks.spawn(self._join_brokers(), "transaction-producer-route")

    async def close(self) -> None:
        """As Producer.close(); does not wait for a checker that runs in a thread."""
        try:
            await super().close()
        finally:
            self._threads.close()

    async def _join_brokers(self) -> None:
        """Fetch the route; its new brokers get a heartbeat immediately. After a failure the periodic refresh retries."""
        try:
            await self._session.routes.refresh(self.config.default_topic)
        except AerobeeError as error:
            log.info("no broker can send checks to this producer before its first send: %s", error)

    async def send_in_transaction(
        self,
        message: Message,
        argument: object = None,
        *,
        executor: Executor | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        message_group: object = None,
        immunity_s: int | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Send a half message, run the executor for the local work, send the outcome to the broker.

        An exception of the executor is in the result's `error`, and the outcome is UNKNOWN: an exception does not show
        whether the work took effect, only the checker does. When the half message is stored less durably than the broker's
        settings require, it is rolled back and the executor does not run. `immunity_s`: earliest time of the first check.
        Raises as send() does when the half message was not stored; the executor did not run then.
        """
        run = executor or self._executor
        if run is None:
            raise UsageError(
                "no executor: pass one to TransactionProducer, or write "
                "send_in_transaction(message, executor=…)"
            )
        if executor is not None:
            check_handler(executor, "executor", ("message", "argument"))
        half = half_of(message, self.group, immunity_s)
        sent = await self.send(
            half, queue=queue, selector=selector, message_group=message_group, timeout_s=timeout_s
        )
        if sent.status is not SendStatus.SEND_OK:
            confirmed = await self._end(half, sent, TransactionState.ROLLBACK)
            return TransactionResult(sent, TransactionState.ROLLBACK, confirmed)
        error: Exception | None = None
        state = TransactionState.UNKNOWN
        self._ended.begin(sent.message_id)
        try:
            state = await _verdict(run(message, argument), "executor")
        except Exception as failure:
            log.warning("the executor of transaction %s failed", sent.message_id, exc_info=failure)
            error = failure
        finally:
            self._ended.end(sent.message_id, sent.queue.broker_name, state)
        return TransactionResult(sent, state, await self._end(half, sent, state), error)

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        message_group: object = None,
        immunity_s: int | None = None,
        timeout_s: float | None = None,
        rollback_on: tuple[type[BaseException], ...] = (),
    ) -> Transaction:
        """A block around the local work: `async with producer.transaction(message) as transaction: ...`.

        Entering sends the half message, leaving commits it. An exception that leaves the block leaves the transaction
        open, and the broker asks the checker: the exception does not show whether the work took effect. List exceptions
        that are raised before any effect in `rollback_on`, or call transaction.rollback().
        """
        half = half_of(message, self.group, immunity_s)

        async def send() -> SendResult:
            return await self.send(
                half, queue=queue, selector=selector, message_group=message_group, timeout_s=timeout_s
            )

        return Transaction(self, half, send, rollback_on)

    def _prepare(self, message: Message) -> tuple[bytes, int]:
        body, sys_flag = super()._prepare(message)
        if message.properties.get(TRAN_MSG) == "true":
            sys_flag |= TRANSACTION_PREPARED
        return body, sys_flag

    # --- ending

    async def _end(self, half: Message, sent: SendResult, state: TransactionState) -> bool:
        """Send the outcome to the broker; True when it confirmed. A failure is logged: the broker will check, or the
        transaction was decided otherwise before."""
        fields = end_fields(
            group=self.group,
            topic=half.topic,
            broker_name=sent.queue.broker_name,
            transaction_id=sent.transaction_id or sent.message_id,
            queue_offset=sent.queue_offset,
            physical_offset=physical_offset_of(sent),
            state=state,
            from_check=False,
        )
        command = RemotingCommand(RequestCode.END_TRANSACTION.value, fields)
        self._trace_end(half, sent, state, from_check=False)
        try:
            info = await self._routes.info(half.topic)
            # Brokers do not reply to "unknown".
            if not self.transactions.confirm or state is TransactionState.UNKNOWN:
                await self._session.invoke_oneway(target_of(info, sent.queue).address, command)
                return False
            await self._session.invoke_broker(
                info.broker_of(sent.queue), half.topic, command, timeout_s=self.transactions.end_timeout_s
            )
        except AerobeeError as error:
            is_refused = isinstance(error, RemoteError) and error.code == ResponseCode.ILLEGAL_OPERATION
            what = "refused" if is_refused else "did not confirm, and will check,"
            log.warning(
                "transaction %s: the broker %s %s: %s", fields["transactionId"], what, state.name, error
            )
            return False
        return True

    def _trace_end(
        self, half: Message, sent: SendResult, state: TransactionState, *, from_check: bool
    ) -> None:
        if self._tracer is not None and sent.trace_on:
            self._tracer.record(
                TraceEvent(
                    kind=TraceKind.END_TRANSACTION,
                    time_ms=self._clock.now_ms(),
                    region=sent.region_id,
                    group=self.group,
                    topic=half.topic,
                    message_id=sent.message_id,
                    tags=half.tag or "",
                    keys=" ".join(half.keys),
                    message_type=TracedType.TRANSACTION_COMMIT,
                    transaction_id=sent.transaction_id or sent.message_id,
                    transaction_state=state.value,
                    from_check=from_check,
                )
            )

    # --- being asked

    def _asked(self, peer: Peer, request: RemotingCommand) -> None:
        """39: a broker checks a transaction of this group."""
        if self._waiting_checks >= self.transactions.check_queue_max:
            log.warning(
                "a check is dropped because %d are waiting; the broker repeats it", self._waiting_checks
            )
            return
        self._waiting_checks += 1
        self._session.tasks.spawn(self._answer(peer, request), "transaction-check")

    async def _answer(self, peer: Peer, request: RemotingCommand) -> None:
        try:
            messages = decode_stored_messages(request.body, request.text("bname", ""))
            if len(messages) != 1:
                raise MalformedFrame(f"CHECK_TRANSACTION_STATE brought {len(messages)} records, not one")
            message = messages[0]
            if message.properties.get(PRODUCER_GROUP) != self.group:
                log.warning(
                    "broker %s asks about a transaction of group %s: this producer is of %s",
                    peer.address,
                    message.properties.get(PRODUCER_GROUP),
                    self.group,
                )
                return
            async with self._checks:
                state = await self._find_out(message)
            self._reply(peer, request, message, state)
        except AerobeeError as error:
            log.warning("a check of broker %s is not answered: %s", peer.address, error)
        finally:
            self._waiting_checks -= 1

    async def _find_out(self, message: ReceivedMessage) -> TransactionState:
        known = self._ended.answer(message.message_id, message.queue.broker_name)
        if known is not None:
            return known
        try:
            return await _verdict(self._checker(message), "checker")
        except BaseException as error:
            # Boundary to user code: the broker repeats the check.
            if not is_of_handler(error):
                raise
            log.warning(
                "the transaction checker failed for %s, the broker repeats the check", message, exc_info=error
            )
            return TransactionState.UNKNOWN

    def _reply(
        self,
        peer: Peer,
        request: RemotingCommand,
        message: ReceivedMessage,
        state: TransactionState,
    ) -> None:
        fields = end_fields(
            group=self.group,
            topic=request.text("topic", message.topic),
            broker_name=message.queue.broker_name,
            transaction_id=request.text("transactionId", message.message_id),
            queue_offset=request.integer("tranStateTableOffset"),
            physical_offset=request.integer("commitLogOffset"),
            state=state,
            from_check=True,
        )
        if not fields["topic"]:
            del fields["topic"]
        peer.invoke_oneway(RemotingCommand(RequestCode.END_TRANSACTION.value, fields, flag=FLAG_ONEWAY))


class Transaction:
    """One transaction as a block. `transaction_id` is set inside the block, `result` after it."""

    def __init__(
        self,
        producer: TransactionProducer,
        half: Message,
        send: Callable[[], Awaitable[SendResult]],
        rollback_on: tuple[type[BaseException], ...],
    ) -> None:
        self._producer = producer
        self._half = half
        self._send = send
        self._rollback_on = rollback_on
        self._state = TransactionState.COMMIT
        self._sent: SendResult | None = None
        self.result: TransactionResult | None = None

    @property
    def transaction_id(self) -> str:
        """The id that a checker receives as message_id: store it with the local work."""
        if self._sent is None:
            raise UsageError("the transaction has not begun: use it inside `async with`")
        return self._sent.transaction_id or self._sent.message_id

    def rollback(self) -> None:
        """Roll back instead of committing when the block ends."""
        self._state = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """Leave the outcome open when the block ends: the broker calls the checker."""
        self._state = TransactionState.UNKNOWN

    async def __aenter__(self) -> Self:
        if self._sent is not None:
            raise UsageError("a transaction is used once: call producer.transaction() for each")
        producer = self._producer
        self._sent = sent = await self._send()
        if sent.status is not SendStatus.SEND_OK:
            confirmed = await producer._end(self._half, sent, TransactionState.ROLLBACK)
            self.result = TransactionResult(sent, TransactionState.ROLLBACK, confirmed)
            raise SendFailed(
                f"the half message for topic {self._half.topic} was stored with "
                f"{sent.status.value}: the transaction is rolled back, and its local work did "
                "not start",
                retriable=True,
            )
        producer._ended.begin(sent.message_id)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._sent is not None
        state = self._state
        if error is not None and state is TransactionState.COMMIT:
            state = (
                TransactionState.ROLLBACK
                if isinstance(error, self._rollback_on)
                else TransactionState.UNKNOWN
            )
        sent, producer = self._sent, self._producer
        producer._ended.end(sent.message_id, sent.queue.broker_name, state)
        confirmed = await producer._end(self._half, sent, state)
        self.result = TransactionResult(
            sent, state, confirmed, error if isinstance(error, Exception) else None
        )


async def _verdict(outcome: Verdict | Awaitable[Verdict], who: str) -> TransactionState:
    """The result of an executor or checker. Raises UsageError for anything but a state or None."""
    verdict = await outcome if inspect.isawaitable(outcome) else outcome
    if verdict is None:
        return TransactionState.UNKNOWN
    if not isinstance(verdict, TransactionState):
        raise UsageError(f"the {who} returned {verdict!r}: a TransactionState or None is expected")
    return verdict
