"""DurableQueue over a fake consumer: renewals, verdicts, space, and the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.client.base.config import ClientConfig
from aerobee.contrib import pop_queue as module
from aerobee.contrib.celery.durable_queue import DurableQueue
from aerobee.contrib.celery.envelope import encode
from aerobee.contrib.celery.settings import QueueOptions, Settings
from aerobee.contrib.delivery import Delivery, Verdict
from aerobee.errors import MessageIllegal, RemoteError, RequestTimeout
from aerobee.remoting.codes import ResponseCode

SETTINGS = Settings(
    nameservers=("x:1",), client=ClientConfig(), options=QueueOptions(visibility_timeout=3, close_timeout=1)
)


class FakeMessage:
    """What a pop returns, as far as the queue reads it."""

    def __init__(self, name: str, **headers: Any) -> None:
        envelope = {"body": name, "headers": headers, "properties": {"delivery_info": {}}}
        self.name = name
        self.body = bytes(encode(envelope, "t").body) if name else b"foreign"
        self.store_timestamp = 0
        self.reconsume_times = 0


class FakeConsumer:
    """A SimpleConsumer without a cluster."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stored: list[FakeMessage] = []
        self.asked: list[int] = []
        self.calls: list[tuple[str, str]] = []
        self.errors: list[Exception] = []
        self.late: list[FakeMessage] = []
        self.more = asyncio.Event()
        self.pending_count = 0
        self.is_closed = False

    async def start(self) -> None: ...

    async def close(self) -> None:
        self.is_closed = True

    def put(self, *messages: FakeMessage) -> None:
        self.stored += messages
        self.more.set()

    async def receive(self, count: int, *, wait_s: float | None = None) -> list[FakeMessage]:
        self.asked.append(count)
        while not self.stored and wait_s is None:
            self.more.clear()
            await self.more.wait()
        taken, self.stored = self.stored[:count], self.stored[count:]
        return taken

    def arrived(self) -> list[FakeMessage]:
        found, self.late = self.late, []
        return found

    def _call(self, what: str, message: FakeMessage) -> None:
        self.calls.append((what, message.name))
        if self.errors:
            raise self.errors.pop(0)

    async def ack(self, message: FakeMessage) -> None:
        self._call("ack", message)

    async def ack_all(self, messages: Any) -> None:
        for message in messages:
            self._call("ack", message)

    async def change_invisible(self, message: FakeMessage, seconds: float, *, count_try: bool = True) -> None:
        self._call(f"invisible {seconds:g}{'' if count_try else ' uncounted'}", message)

    async def dead_letter(self, message: FakeMessage, reason: str) -> None:
        self._call("dead", message)


class Setup:
    """A started queue with its fake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, space: int = 8) -> None:
        monkeypatch.setattr(module, "SimpleConsumer", FakeConsumer)
        monkeypatch.setattr(module, "FRESH_POP_S", 0.0)
        self.space = space
        self.changed = asyncio.Event()
        self.sent: list[float | None] = []
        self.send_error: Exception | None = None
        link: Any = SimpleNamespace(nameservers=("x:1",), client=None, consumers=set(), send=self.send)
        self.queue = DurableQueue(
            link, SETTINGS, "t", wanted=lambda: self.space - self.queue.ready_count, notify=self.changed.set
        )
        self.consumer: FakeConsumer = self.queue._consumer  # type: ignore[assignment]

    async def send(self, _message: object, *, queue_id: int | None, deliver_at_s: float | None) -> None:
        self.sent.append(deliver_at_s)
        if self.send_error is not None:
            raise self.send_error

    async def delivery(self) -> Delivery:
        async with asyncio.timeout(30):
            while (found := self.queue.take()) is None:
                self.changed.clear()
                await self.changed.wait()
        return found


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the fake has no event for everything
            await asyncio.sleep(0.005)


@pytest.fixture
async def setup(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Setup(monkeypatch)
    await found.queue.start()
    await found.queue.receive()
    yield found
    await found.queue.close()


async def test_acknowledgement_is_repeated_until_the_broker_takes_it(setup: Setup) -> None:
    setup.consumer.put(FakeMessage("a"))
    delivery = await setup.delivery()
    setup.consumer.errors = [RequestTimeout("late", address="x:1", request="ack", elapsed_s=1.0)]
    setup.queue.settle(delivery, Verdict.ACK)
    setup.queue.settle(delivery, Verdict.REQUEUE)  # the first verdict counts
    await until(lambda: not setup.queue.held_count)
    assert setup.consumer.calls == [("ack", "a")] * 2


async def test_acknowledgement_after_redelivery_is_dropped(setup: Setup) -> None:
    setup.consumer.put(FakeMessage("a"))
    delivery = await setup.delivery()
    setup.consumer.errors = [too_late()]
    setup.queue.settle(delivery, Verdict.ACK)
    await until(lambda: not setup.queue.held_count)
    assert setup.consumer.calls == [("ack", "a")]


async def test_taken_message_is_renewed_and_an_unused_one_returned(setup: Setup) -> None:
    setup.consumer.put(FakeMessage("taken"), FakeMessage("unused"))
    delivery = await setup.delivery()
    await until(lambda: setup.queue.ready_count)
    for held in setup.queue._held:
        held.renew_at_s = 0.0
    await until(lambda: len(setup.consumer.calls) >= 2)
    assert sorted(setup.consumer.calls) == [("invisible 1 uncounted", "unused"), ("invisible 3", "taken")]
    setup.queue.settle(delivery, Verdict.ACK)
    await until(lambda: not setup.queue.held_count)


async def test_redelivered_message_is_renewed_no_more(setup: Setup) -> None:
    setup.consumer.put(FakeMessage("a"))
    delivery = await setup.delivery()
    setup.consumer.errors = [too_late()]
    delivery.renew_at_s = 0.0
    await until(lambda: delivery.is_lost)
    assert setup.queue.held_count == 1, "the worker has it still"


async def test_verdicts_reach_the_broker_as_they_are(setup: Setup) -> None:
    setup.consumer.put(*(FakeMessage(name) for name in "abc"))
    verdicts = (Verdict.REQUEUE, Verdict.RETURN, Verdict.DEAD_LETTER)
    for delivery, verdict in zip([await setup.delivery() for _ in verdicts], verdicts, strict=True):
        setup.queue.settle(delivery, verdict)
    await until(lambda: not setup.queue.held_count)
    assert setup.consumer.calls == [("invisible 0", "a"), ("invisible 1 uncounted", "b"), ("dead", "c")]


async def test_foreign_message_becomes_a_dead_letter(setup: Setup) -> None:
    setup.consumer.put(FakeMessage(""))
    await until(lambda: setup.consumer.calls)
    assert setup.consumer.calls == [("dead", "")]


async def test_no_room_no_pop(setup: Setup) -> None:
    await until(lambda: setup.consumer.asked)
    setup.space = 0
    setup.consumer.put(FakeMessage("a"))
    await setup.delivery()
    await asyncio.sleep(0)
    asked = len(setup.consumer.asked)
    setup.queue.space_freed()  # there is none: it looks, and waits again
    await asyncio.sleep(0.02)
    assert len(setup.consumer.asked) == asked
    setup.space = 5
    setup.queue.space_freed()
    await until(lambda: len(setup.consumer.asked) > asked)
    assert setup.consumer.asked[-1] == 5


async def test_early_task_is_sent_on_and_acknowledged(setup: Setup) -> None:
    setup.consumer.put(FakeMessage("a", eta="2999-01-01T00:00:00"))
    await until(lambda: setup.consumer.calls)
    assert setup.consumer.calls == [("ack", "a")]
    assert len(setup.sent) == 1


async def test_worker_holds_a_task_that_no_broker_takes_back(setup: Setup) -> None:
    setup.send_error = MessageIllegal(int(ResponseCode.MESSAGE_ILLEGAL), "no timers")
    setup.consumer.put(FakeMessage("a", eta="2999-01-01T00:00:00"))
    delivery = await setup.delivery()
    assert (delivery.envelope["body"], setup.consumer.calls) == ("a", [])


async def test_close_returns_what_is_held(setup: Setup) -> None:
    """Visible after a second, so that no broker hands a message to the pop that is still pending here."""
    setup.consumer.put(FakeMessage("a"), FakeMessage("b"))
    await setup.delivery()
    await until(lambda: setup.queue.ready_count)
    setup.consumer.late = [FakeMessage("c")]
    await setup.queue.close()
    assert sorted(setup.consumer.calls) == [("invisible 1 uncounted", name) for name in "abc"]
    assert setup.consumer.is_closed


async def test_close_returns_the_messages_of_a_fresh_pop(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_POP_S", 60.0)
    await until(lambda: setup.consumer.asked)
    closing = asyncio.create_task(setup.queue.close())
    await until(lambda: setup.queue._is_paused)
    setup.consumer.put(FakeMessage("a"))
    await closing
    assert setup.consumer.calls == [("invisible 1 uncounted", "a")]


async def test_close_ends_when_brokers_do_not_answer(setup: Setup) -> None:
    setup.consumer.put(FakeMessage("a"))
    await setup.delivery()
    setup.consumer.errors = [
        RequestTimeout("late", address="x:1", request="ack", elapsed_s=1.0) for _ in range(100)
    ]
    await setup.queue.close()
    assert setup.queue.held_count == 1


def too_late() -> RemoteError:
    return RemoteError(int(ResponseCode.NO_MESSAGE), "redelivered")
