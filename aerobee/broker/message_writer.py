"""The way of a message that the broker stores for somebody: through the put hooks into the store (PutMessageHook).

A hook looks at a checked message and returns what is to be stored in its place: the form for the schedule topic, a
half message, a timer message. It raises RemoteError to refuse. Hooks run in the order in which they were added, each on
what the one before it returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aerobee.store.config import StoreConfig
from aerobee.store.stored_message import AppendResult, StoredMessage

# The properties are those of the message, decoded; a hook that changes them returns a message with the new text.
PutHook = Callable[[StoredMessage, dict[str, str]], StoredMessage]
StoredCallback = Callable[[StoredMessage, dict[str, str], AppendResult], None]


class MessageLog(Protocol):
    """What sending needs of the store."""

    config: StoreConfig

    def append(self, message: StoredMessage) -> AppendResult: ...

    def append_batch(self, messages: list[StoredMessage]) -> AppendResult: ...

    def next_offset(self, topic: str, queue_id: int) -> int: ...


class MessageWriter:
    """Stores messages through the hooks. Batches and deliveries of what lay in a system topic go to the store itself."""

    def __init__(self, store: MessageLog) -> None:
        self._store = store
        self._hooks: list[PutHook] = []
        self._watchers: dict[str, StoredCallback] = {}

    def add_hook(self, hook: PutHook) -> None:
        self._hooks.append(hook)

    def on_stored(self, topic: str, callback: StoredCallback) -> None:
        """Call back with what is stored in `topic` through this writer, its properties and where it is. One a topic."""
        self._watchers[topic] = callback

    def put(self, message: StoredMessage, properties: dict[str, str]) -> AppendResult:
        """Store one message. Raises RemoteError when a hook refuses, and what MessageStore.append raises."""
        for hook in self._hooks:
            message = hook(message, properties)
        result = self._store.append(message)
        watcher = self._watchers.get(message.topic)
        if watcher is not None:
            watcher(message, properties, result)
        return result
