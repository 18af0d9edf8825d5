"""The clients of a broker object, in one thread with its event loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ClientConfig
from aerobee.client.producer.producer import Producer
from aerobee.client.sync import LoopThread
from aerobee.errors import UsageError

T = TypeVar("T")
PRODUCER_GROUP = "dramatiq"


class Link:
    """Producer and admin client, and the event loop for what consumes."""

    def __init__(self, nameservers: str | Sequence[str], client: ClientConfig | None) -> None:
        self.producer = Producer(nameservers, PRODUCER_GROUP, client=client)
        self.admin = Admin(nameservers, client=client)
        self._pid = os.getpid()
        self._thread: LoopThread | None = LoopThread("aerobee-dramatiq")
        try:
            self.call(self.producer.start())
            self.call(self.admin.start())
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether its thread runs in this process, which is not a forked child of the one that opened it."""
        return self._thread is not None and self._pid == os.getpid()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result."""
        if self._thread is None or self._pid != os.getpid():
            work.close()
            raise UsageError("this broker is closed")
        return self._thread.call(work)

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule a call in the loop. Does nothing after close()."""
        if self._thread is not None and self._pid == os.getpid():
            self._thread.call_soon(function, *arguments)

    def close(self) -> None:
        """Close the clients and end the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.call(self._close_clients())
        finally:
            thread.stop()

    async def _close_clients(self) -> None:
        try:
            await self.producer.close()
        finally:
            await self.admin.close()
