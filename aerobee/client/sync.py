"""A synchronous facade for scripts: the same calls, blocking.

    with SyncProducer("127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"hello"))

    with SyncPushConsumer("127.0.0.1:9876", "billing", subscriptions=["orders"]) as consumer:
        for message in consumer:
            print(message.body)

`with` starts one background thread with its event loop, in which the asynchronous client runs; leaving the
block closes the client and ends the thread. A call may come from any thread but one that runs an event loop: there
it would block that loop, so it is refused.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
)
from aerobee.client.base.observer import ConsumeObserver, SendObserver
from aerobee.client.base.received import ReceivedMessage, Settles, attach
from aerobee.client.base.results import SendResult
from aerobee.client.base.verdict import GiveBack
from aerobee.client.consumer.consumption import Handler
from aerobee.client.consumer.pull_consumer import PullConsumer
from aerobee.client.consumer.push_consumer import PushConsumer
from aerobee.client.producer.message_group import Selector
from aerobee.client.producer.producer import Producer
from aerobee.client.serialize.serializer import Deserializer, Serializer
from aerobee.errors import UsageError
from aerobee.message import Message, MessageQueue

T = TypeVar("T")


class _Client(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=_Client)


class Loop(Protocol):
    """Event loop of a client."""

    def call(self, work: Coroutine[Any, Any, T]) -> T: ...
    def call_soon(self, function: Callable[..., object], *arguments: object) -> None: ...
    def stop(self) -> None: ...


class OtherLoop:
    """An event loop in a thread that the caller owns and stops."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it. An interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule a function call in the event loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """Does nothing: the loop continues."""


class LoopThread(OtherLoop):
    """One thread that runs an event loop from start() to stop()."""

    def __init__(self, name: str) -> None:
        super().__init__(asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Sync(Generic[ClientT]):
    """Starts an asynchronous client in a background thread and calls it there."""

    def __init__(self, client: ClientT) -> None:
        self._client = client
        self._host: Loop | None = None  # the event loop to use; None: one in a background thread
        self._thread: Loop | None = None

    @classmethod
    def over(cls, client: ClientT, loop: Loop) -> Self:
        """The blocking form of a client that was created elsewhere and belongs to another thread's event loop."""
        made = cls.__new__(cls)
        _Sync.__init__(made, client)
        made._host = loop
        return made

    def start(self) -> None:
        """Connect, as `with` does on entry. Raises UsageError when the client is started already, and what the client's start() raises."""
        if self._thread is not None:
            raise UsageError("this client is started already; use one object for each `with`")
        self._thread = self._host or LoopThread(f"aerobee-{type(self._client).__name__.lower()}")
        try:
            self._call(self._client.start())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise

    def close(self) -> None:
        """Close the client and end its thread, as `with` does on exit. A client that is not started stays as it is."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(self._client.close())
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        problem = ""
        if self._thread is None:
            problem = "this client is not open: use it inside `with`"
        else:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return self._thread.call(work)
            problem = (
                f"an event loop runs in this thread: use {type(self._client).__name__} with `await` instead"
            )
        work.close()
        raise UsageError(problem)


class SyncProducer(_Sync[Producer]):
    """Producer, blocking."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str = "DEFAULT_PRODUCER",
        *,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        trace: bool = False,
        observers: Sequence[SendObserver] = (),
        serializer: Serializer | None = None,
    ) -> None:
        super().__init__(
            Producer(
                nameservers,
                group,
                config=config,
                client=client,
                trace=trace,
                observers=observers,
                serializer=serializer,
            )
        )

    def message(self, topic: str, value: Any, **fields: Any) -> Message:
        """See Producer.message."""
        return self._client.message(topic, value, **fields)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        message_group: object = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """See Producer.send."""
        return self._call(
            self._client.send(
                message, queue=queue, selector=selector, message_group=message_group, timeout_s=timeout_s
            )
        )

    def recall(self, topic: str, handle: str) -> str:
        """See Producer.recall."""
        return self._call(self._client.recall(topic, handle))

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, message_group: object = None
    ) -> None:
        """See Producer.send_oneway."""
        self._call(self._client.send_oneway(message, queue=queue, message_group=message_group))

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> tuple[SendResult, ...]:
        """See Producer.send_batch."""
        return self._call(self._client.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def request(
        self, message: Message, *, timeout_s: float = 3.0, message_group: object = None
    ) -> ReceivedMessage:
        """See Producer.request."""
        return self._call(self._client.request(message, timeout_s=timeout_s, message_group=message_group))

    def reply_to(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> SendResult:
        """See Producer.reply_to."""
        return self._call(self._client.reply_to(request, body, tag=tag, properties=properties))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See Producer.queues."""
        return self._call(self._client.queues(topic))


class SyncPullConsumer(_Sync[PullConsumer]):
    """PullConsumer, blocking."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str,
        *,
        config: PullConsumerConfig | None = None,
        client: ClientConfig | None = None,
        trace: bool = False,
        observers: Sequence[ConsumeObserver] = (),
        deserializer: Deserializer | None = None,
    ) -> None:
        super().__init__(
            PullConsumer(
                nameservers,
                group,
                config=config,
                client=client,
                trace=trace,
                observers=observers,
                deserializer=deserializer,
            )
        )

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """See PullConsumer.subscribe."""
        self._call(self._client.subscribe(topic, expression))

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """See PullConsumer.assign."""
        self._call(self._client.assign(queues, expression))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See PullConsumer.queues."""
        return self._call(self._client.queues(topic))

    @property
    def assigned(self) -> frozenset[MessageQueue]:
        """See PullConsumer.assigned."""
        return self._client.assigned

    def position(self, queue: MessageQueue) -> int | None:
        """See PullConsumer.position."""
        return self._client.position(queue)

    def begin_offset(self, queue: MessageQueue) -> int:
        """See PullConsumer.begin_offset."""
        return self._call(self._client.begin_offset(queue))

    def end_offset(self, queue: MessageQueue) -> int:
        """See PullConsumer.end_offset."""
        return self._call(self._client.end_offset(queue))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages as they arrive, without an end; leave the loop with `break`.

        With `auto_commit` a message is committed together with the messages of the same fetch; commit() commits all
        fetched ones.
        """
        while True:
            yield from self.poll()

    def poll(self, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """See PullConsumer.poll."""
        return self._call(self._client.poll(timeout_s))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """See PullConsumer.seek."""
        self._call(self._client.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """See PullConsumer.seek_to_begin."""
        self._call(self._client.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """See PullConsumer.seek_to_end."""
        self._call(self._client.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """See PullConsumer.seek_to_time."""
        self._call(self._client.seek_to_time(queue, timestamp_ms))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """See PullConsumer.commit."""
        self._call(self._client.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """See PullConsumer.committed."""
        return self._call(self._client.committed(queue))


class SyncPushConsumer(_Sync[PushConsumer]):
    """PushConsumer, blocking: `for message in consumer`, or a handler and wait().

    The next step of the loop acknowledges a message, or `message.ack()` does earlier; `message.retry()` redelivers it,
    `message.reject()` dead-letters it. The last message of a loop that is left is acknowledged only by `message.ack()`.
    A plain handler runs in threads, as PushConsumer says.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str],
        group: str,
        subscriptions: Mapping[str, str] | Iterable[str],
        handler: Handler | None = None,
        *,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        trace: bool = False,
        observers: Sequence[ConsumeObserver] = (),
        deserializer: Deserializer | None = None,
    ) -> None:
        super().__init__(
            PushConsumer(
                nameservers,
                group,
                subscriptions=subscriptions,
                handler=handler,
                config=config,
                client=client,
                trace=trace,
                observers=observers,
                deserializer=deserializer,
            )
        )

    @property
    def owned(self) -> frozenset[MessageQueue]:
        """See PushConsumer.owned."""
        return self._client.owned

    @property
    def consumed_count(self) -> int:
        """See PushConsumer.consumed_count."""
        return self._client.consumed_count

    def __iter__(self) -> Iterator[ReceivedMessage]:
        steps = aiter(self._client)

        async def step() -> ReceivedMessage | None:
            return await anext(steps, None)

        while (message := self._call(step())) is not None:
            settler = message._settler
            if settler is not None and self._thread is not None:
                attach(message, _FromAnyThread(self._thread, settler))
            yield message

    def wait(self, timeout_s: float | None = None) -> None:
        """Block while the handler receives messages: forever, until Ctrl-C, or for `timeout_s` seconds."""
        threading.Event().wait(timeout_s)


class _FromAnyThread:
    """Passes the verdict on a message to the event loop of its consumer."""

    def __init__(self, loop: Loop, settler: Settles) -> None:
        self._loop = loop
        self._settler = settler

    def settle(self, message: ReceivedMessage, verdict: GiveBack | None) -> None:
        self._loop.call_soon(self._settler.settle, message, verdict)


class SyncAdmin(_Sync[Admin]):
    """Admin, blocking: `with SyncAdmin(addresses) as admin: print(admin.topics())`.

    It has every call of Admin, with the same arguments, under the same name.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str],
        *,
        config: AdminConfig | None = None,
        client: ClientConfig | None = None,
    ) -> None:
        super().__init__(Admin(nameservers, config=config, client=client))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        call = getattr(self._client, name)
        if not inspect.iscoroutinefunction(call):
            raise AttributeError(f"Admin has no call {name}")

        @functools.wraps(call)
        def blocking(*arguments: Any, **named: Any) -> Any:
            return self._call(call(*arguments, **named))

        return blocking

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self._client) if not name.startswith("_"))})
