"""The way of a message that the broker stores for somebody: through the put hooks into the store (PutMessageHook).

A hook gets a checked message that has one of its properties, and returns what is to be stored in its place: the form for the
schedule topic, a half message, a timer message. It raises RemoteError to refuse. Hooks run in the order in which they were
added, each on what the one before it returned. An ordinary message passes none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aerobee.broker.feature import PutHook
from aerobee.broker.send.light_queue import names_light_queues
from aerobee.store.config import StoreConfig
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.stored_message import AppendResult, StoredMessage

StoredCallback = Callable[[StoredMessage, dict[str, str], AppendResult], None]


class MessageLog(Protocol):
    """What sending needs of the store."""

    config: StoreConfig

    def append(
        self, message: StoredMessage, *, light_queues: Sequence[ConsumeQueue] = ()
    ) -> AppendResult: ...

    def append_batch(self, messages: list[StoredMessage]) -> AppendResult: ...

    def next_offset(self, topic: str, queue_id: int) -> int: ...


class LightDispatch(Protocol):
    """Who knows light queues (light_queue.py)."""

    def check(self, properties: Mapping[str, str]) -> object: ...

    def prepare(self, message: StoredMessage) -> tuple[StoredMessage, list[ConsumeQueue]]: ...


class MessageWriter:
    """Stores messages through the hooks. Batches, and deliveries of what waited (delay/redelivery.py), go to the store itself."""

    def __init__(self, store: MessageLog, *, light: LightDispatch | None = None) -> None:
        """`light` lets messages with INNER_MULTI_DISPATCH be read from light queues, too."""
        self._store = store
        self._hooks: list[PutHook] = []
        self._watchers: dict[str, StoredCallback] = {}
        self._light = light

    def add_hook(self, hook: PutHook) -> None:
        """Let the hook look at messages from now on, after those that were added before."""
        self._hooks.append(hook)

    def on_stored(self, topic: str, callback: StoredCallback) -> None:
        """Call back with what is stored in `topic` through this writer, its properties and where it is. One a topic."""
        self._watchers[topic] = callback

    def put(self, message: StoredMessage, properties: dict[str, str]) -> AppendResult:
        """Store one message. Raises RemoteError when a hook refuses, and what MessageStore.append raises."""
        topic = message.topic
        for hook in self._hooks:
            if not hook.names.isdisjoint(properties):
                message = hook.form(message, properties)
        queues: Sequence[ConsumeQueue] = ()
        if self._light is not None and names_light_queues(topic, properties):
            if message.topic == topic:
                message, queues = self._light.prepare(message)
            else:  # a hook put it aside: it enters them when it is delivered (Redelivery) or committed (put() again)
                self._light.check(properties)
        result = self._store.append(message, light_queues=queues)
        watcher = self._watchers.get(message.topic)
        if watcher is not None:
            watcher(message, properties, result)
        return result
