"""ThreadedCluster: a LocalCluster in a background thread with its event loop, for tests that have no loop.

Its methods block, and may be called from any thread, also inside a running event loop: what they wait for happens in
the other thread. producer() and similar methods return blocking clients that run in the cluster's loop and on its clock; a
client that a test creates itself has another clock, which advance_clock() does not move.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from aerobee.client.consumer.consumption import Handler
from aerobee.client.sync import OtherLoop, SyncAdmin, SyncProducer, SyncPullConsumer, SyncPushConsumer
from aerobee.errors import UsageError
from aerobee.testing.local_cluster import LocalCluster

T = TypeVar("T")
# Longest time of one call before the test fails because the cluster hangs.
CALL_TIMEOUT_S = 120.0


class ThreadedCluster:
    """`with ThreadedCluster(brokers=2) as cluster: connect(cluster.nameserver_address)`. Options as LocalCluster's."""

    def __init__(self, **options: Any) -> None:
        self._cluster = LocalCluster(**options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread and in it the cluster. Raises what LocalCluster.start raises."""
        if self._thread is not None:
            raise UsageError("this cluster is started already")
        loop: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name="aerobee-cluster", daemon=True)
        self._thread.start()
        self._loop = loop.result(CALL_TIMEOUT_S)
        try:
            self._call(self._cluster.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop the cluster and its thread. A second call does nothing."""
        if self._thread is None:
            return
        try:
            self._call(self._cluster.stop())
        finally:
            self._end()

    @property
    def cluster(self) -> LocalCluster:
        """The cluster itself; its coroutines belong to the other thread's loop."""
        return self._cluster

    @property
    def nameserver_address(self) -> str:
        return self._cluster.nameserver_address

    @property
    def nameserver_addresses(self) -> tuple[str, ...]:
        return self._cluster.nameserver_addresses

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        return self._cluster.broker_addresses

    @property
    def broker_names(self) -> tuple[str, ...]:
        return self._cluster.broker_names

    def producer(self, group: str = "DEFAULT_PRODUCER", **options: Any) -> SyncProducer:
        """A blocking producer on the cluster's clock: `with cluster.producer() as producer`. See LocalCluster.producer."""
        return SyncProducer.over(self._cluster.producer(group, **options), self._home())

    def push_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str] | Iterable[str],
        handler: Handler | None = None,
        **options: Any,
    ) -> SyncPushConsumer:
        """A blocking push consumer on the cluster's clock; without a handler `for message in consumer`."""
        consumer = self._cluster.push_consumer(group, subscriptions, handler, **options)
        return SyncPushConsumer.over(consumer, self._home())

    def pull_consumer(self, group: str, **options: Any) -> SyncPullConsumer:
        """A blocking pull consumer on the cluster's clock."""
        return SyncPullConsumer.over(self._cluster.pull_consumer(group, **options), self._home())

    def admin(self, **options: Any) -> SyncAdmin:
        """A blocking admin client on the cluster's clock."""
        return SyncAdmin.over(self._cluster.admin(**options), self._home())

    def create_topic(self, name: str, queues: int = 4, *, perm: int = 6, attributes: str = "") -> None:
        """As LocalCluster.create_topic."""
        self._call(self._cluster.create_topic(name, queues, perm=perm, attributes=attributes))

    def advance_clock(self, seconds: float) -> None:
        """Move the clock of brokers, nameservers, and the clients that this cluster gave."""
        self._call(self._cluster.advance_clock(seconds))

    def stop_broker(self, index: int = 0) -> None:
        self._call(self._cluster.stop_broker(index))

    def kill_broker(self, index: int = 0) -> None:
        self._call(self._cluster.kill_broker(index))

    def start_broker(self, index: int = 0) -> None:
        self._call(self._cluster.start_broker(index))

    def stop_nameserver(self, index: int = 0) -> None:
        self._call(self._cluster.stop_nameserver(index))

    def start_nameserver(self, index: int = 0) -> None:
        self._call(self._cluster.start_nameserver(index))

    def _home(self) -> OtherLoop:
        if self._loop is None:
            raise UsageError("this cluster is not started: use `with`, or call start()")
        return OtherLoop(self._loop)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise UsageError("this cluster is not started: use `with`, or call start()")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def _end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None
        if self._thread is not None:
            self._thread.join(CALL_TIMEOUT_S)
            self._thread = None


def _run_loop(started: Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        started.set_result(loop)
        loop.run_forever()
