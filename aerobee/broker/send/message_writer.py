"""Stores a client's message: put hooks, then the store (PutMessageHook).

A hook gets a checked message that has one of its properties, and returns what to store instead: the form for the
schedule topic, a half message, a timer message. It raises RemoteError to refuse. Hooks run in the order in which they were
added, each on what the one before it returned. An ordinary message passes none of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from aerobee.broker.send.lmq import names_lmqs
from aerobee.broker.state.feature import PutHook
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.errors import RecordInvalid, RemoteError
from aerobee.log_throttle import LogThrottle
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)
StoredCallback = Callable[[StoredMessage, dict[str, str], AppendResult], None]


class LmqDispatch(Protocol):
    """Selector of LMQs (lmq.py)."""

    def check(self, properties: Mapping[str, str]) -> object: ...

    def prepare(self, message: StoredMessage) -> tuple[StoredMessage, list[ConsumeQueue]]: ...


class MessageWriter:
    """Stores messages through the hooks. Batches, and deliveries of due messages (delay/redelivery.py), bypass it."""

    def __init__(
        self,
        store: MessageStore,
        *,
        lmqs: LmqDispatch | None = None,
        unserved: UnservedKinds | None = None,
    ) -> None:
        """`lmqs` lets messages with INNER_MULTI_DISPATCH be read from LMQs, too. `unserved`: whose messages are refused."""
        self._store = store
        self._hooks: list[tuple[PutHook, str, bool]] = []
        self._unserved = UnservedKinds() if unserved is None else unserved
        self._watchers: dict[str, StoredCallback] = {}
        self._lmqs = lmqs
        self._throttle = LogThrottle(log, time.monotonic)

    def add_hook(self, hook: PutHook, feature: str = "", *, accepts_early: bool = False) -> None:
        """Call the hook with messages from now on, after the hooks that were added before. While `feature` cannot be
        served, messages to which the hook gives another form are refused; with `accepts_early` not while it only
        begins.
        """
        self._hooks.append((hook, feature, accepts_early))

    def on_stored(self, topic: str, callback: StoredCallback) -> None:
        """Call back with each message that this writer stores in `topic`: its properties and its position. One a
        topic.
        """
        self._watchers[topic] = callback

    def put(
        self, message: StoredMessage, properties: dict[str, str], *, is_accepted: bool = False
    ) -> AppendResult:
        """Store one message. `is_accepted`: as append_accepted(). Raises RemoteError when a hook refuses, and what MessageStore.append
        raises."""
        topic = message.topic
        for hook, feature, accepts_early in self._hooks:
            if not hook.names.isdisjoint(properties):
                formed = hook.form(message, properties)
                # An accepted message is kept until the feature is served again.
                if formed is not message and not is_accepted:
                    self._unserved.check(feature, accepts_early=accepts_early)
                message = formed
        if self._lmqs is None or not names_lmqs(topic, properties):
            result = self._store.append(message)
        elif message.topic != topic:
            # A hook put it aside: it enters them when it is delivered (Redelivery) or committed (put() again).
            self._lmqs.check(properties)
            result = self._store.append(message)
        elif is_accepted:
            result = append_accepted(self._store, self._lmqs, message, self._throttle)
        else:
            message, queues = self._lmqs.prepare(message)
            result = self._store.append(message, lmqs=queues)
        watcher = self._watchers.get(message.topic)
        if watcher is not None:
            watcher(message, properties, result)
        return result


def append_accepted(
    store: MessageStore, lmqs: LmqDispatch, message: StoredMessage, throttle: LogThrottle
) -> AppendResult:
    """Append a delayed message that names LMQs. Its producer has the acknowledgement: a message that can no longer
    enter LMQs (too many exist) is stored only in its topic. Raises what MessageStore.append raises."""
    text = message.properties
    try:
        prepared, queues = lmqs.prepare(message)
        return store.append(prepared, lmqs=queues)
    except (RemoteError, RecordInvalid) as error:
        topic = message.topic
        throttle.warn(topic, "a message of %s that has waited is in no LMQ: %s", topic, error)
    message.properties = text
    return store.append(message)
