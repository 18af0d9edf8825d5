"""The clients of one cluster that all Kombu connections of a process share, in one thread with its event loop.

A worker opens several connections: for tasks, events, gossip, control and its pool of producers. They share one link,
which is closed with the last of them. A forked child has the objects of its parent, but not the thread: it abandons
them, without closing sockets or selectors that belong to its parent too, and opens a separate link.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any, Protocol, TypeVar

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ClientConfig
from aerobee.client.base.results import SendResult
from aerobee.client.producer.producer import Producer
from aerobee.client.sync import LoopThread
from aerobee.contrib.celery.settings import Settings
from aerobee.contrib.new_topic import create_topic
from aerobee.errors import AerobeeError, UsageError
from aerobee.message import Message, MessageQueue

log = logging.getLogger(__name__)
T = TypeVar("T")
PRODUCER_GROUP = "kombu"
# How long a topic that does not exist is not looked up again.
ABSENT_S = 1.0
ABSENT_MAX = 1_000  # number of such topics; further ones are looked up each time
PRIORITY_TYPE = {"message.type": "PRIORITY"}


class Closes(Protocol):
    """A queue that is closed before its link."""

    async def close(self) -> None: ...


class ClusterLink:
    """Producer and admin client of a cluster, and the event loop for what consumes from it."""

    def __init__(self, nameservers: tuple[str, ...], client: ClientConfig) -> None:
        self.nameservers = nameservers
        self.client = client
        self.users = 0
        self.consumers: set[Closes] = set()  # in the loop
        self.producer = Producer(nameservers, PRODUCER_GROUP, client=client)
        self.admin = Admin(nameservers, client=client)
        self._thread: LoopThread | None = None
        self._pid = os.getpid()
        self._turns = count()  # brokers take turns
        self._known: set[str] = set()
        self._absent: dict[str, float] = {}  # topic -> time of the look-up

    @property
    def is_open(self) -> bool:
        """Whether its thread runs in this process."""
        return self._thread is not None and self._pid == os.getpid()

    def open(self) -> None:
        """Start the thread and the clients. Raises ConnectFailed when no NameServer answers."""
        self._thread = LoopThread("aerobee-celery")
        try:
            self.call(self.producer.start())
            self.call(self.admin.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the clients and end the thread. In a forked child: forget them."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        try:
            thread.call(self._close_clients())
        finally:
            thread.stop()

    async def _close_clients(self) -> None:
        try:
            outcomes = await asyncio.gather(
                *(consumer.close() for consumer in tuple(self.consumers)), return_exceptions=True
            )
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    log.warning("a queue did not close cleanly: %s", outcome)
            await self.producer.close()
        finally:
            await self.admin.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the link's loop and wait for its result."""
        if self._thread is None or self._pid != os.getpid():
            work.close()
            raise UsageError("this connection belongs to another process, or is closed: open a new one")
        return self._thread.call(work)

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule a call in the link's loop. Does nothing in a forked child and after close()."""
        if self._thread is not None and self._pid == os.getpid():
            self._thread.call_soon(function, *arguments)

    # topics

    async def send(
        self, message: Message, *, queue_id: int | None = None, deliver_at_s: float | None = None
    ) -> SendResult:
        """Send; with `queue_id` to this queue of any broker, the first that accepts."""
        if deliver_at_s is not None:
            message = Message(
                message.topic,
                message.body,
                tag=message.tag,
                keys=message.keys,
                properties=message.properties,
                deliver_at=deliver_at_s,
            )
        if queue_id is None:
            return await self.producer.send(message)

        def choose(queues: Sequence[MessageQueue], _message: Message, _argument: object) -> MessageQueue:
            distance = min(abs(queue.queue_id - queue_id) for queue in queues)
            nearest = [queue for queue in queues if abs(queue.queue_id - queue_id) == distance]
            return nearest[next(self._turns) % len(nearest)]

        return await self.producer.send(message, selector=choose)

    async def exists(self, topic: str) -> bool:
        """Whether brokers have the topic. A positive answer is kept, a negative one for a second."""
        if topic in self._known:
            return True
        if time.monotonic() - self._absent.get(topic, -ABSENT_S) < ABSENT_S:
            return False
        found = await self.admin.topic_exists(topic)
        if found:
            self._known.add(topic)
            self._absent.pop(topic, None)
        else:
            self._remember_absent(topic)
        return found

    def _remember_absent(self, topic: str) -> None:
        """Names of reply queues are new ones again and again, so the table is emptied of what it no longer needs."""
        now_s = time.monotonic()
        if len(self._absent) >= ABSENT_MAX:
            self._absent = {name: at_s for name, at_s in self._absent.items() if now_s - at_s < ABSENT_S}
        if len(self._absent) < ABSENT_MAX:
            self._absent[topic] = now_s

    async def ensure(
        self,
        topic: str,
        settings: Settings,
        *,
        queue_count: int = 0,
        priorities: bool = False,
        group: str = "",
    ) -> None:
        """Create the topic, and with `group` the consumer group, unless the topic exists; routed on return.

        Raises UsageError without `create_topics`, another AerobeeError when a broker refuses.
        """
        self._absent.pop(topic, None)
        if await self.exists(topic):
            return
        if not settings.options.create_topics:
            raise UsageError(
                f"the topic {topic} does not exist and the transport option create_topics is False: create it with "
                f"`aerobee topic create {topic}`"
            )
        await create_topic(
            self.admin,
            topic,
            queue_count=queue_count or settings.options.queue_count,
            attributes=PRIORITY_TYPE if priorities else None,
            group=group,
            max_redeliveries=settings.options.max_redeliveries,
        )
        self._absent.pop(topic, None)
        self._known.add(topic)

    def forget(self, topic: str) -> None:
        """The topic was deleted."""
        self._known.discard(topic)


_links: dict[tuple[tuple[str, ...], ClientConfig], ClusterLink] = {}
_lock = threading.Lock()
# Links of the parent in a forked child: kept, because collecting them would touch selectors that the parent uses.
_abandoned: list[ClusterLink] = []


def acquire(settings: Settings) -> ClusterLink:
    """The link of a cluster, opened by the first user. Raises ConnectFailed when no NameServer answers."""
    key = (settings.nameservers, settings.client)
    with _lock:
        link = _links.get(key)
        if link is None:
            link = ClusterLink(*key)
            link.open()
            _links[key] = link
        link.users += 1
        return link


def release(link: ClusterLink) -> None:
    """Undo one acquire(); the last one closes the link."""
    with _lock:
        link.users -= 1
        if link.users:
            return
        key = (link.nameservers, link.client)
        if _links.get(key) is link:
            del _links[key]
    _close(link)


def _close(link: ClusterLink) -> None:
    try:
        link.close()
    except AerobeeError as error:
        log.warning("the link to %s did not close cleanly: %s", ";".join(link.nameservers), error)


@atexit.register
def _close_all() -> None:
    """A program that ends without closing its connections returns its messages, too."""
    for link in tuple(_links.values()):
        _close(link)


def _forget_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _abandoned.extend(_links.values())
    _links.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
