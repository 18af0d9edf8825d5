"""Applies a handler's effect once per message, although delivery is "at least once".

A message is delivered twice when a consumer dies between its work and the commit of its offset, when a queue changes
its owner, or when a producer sent it twice. The wrapper runs the handler inside one transaction of a store that the
user picks; the message's key is written in the same transaction. So effect and key are committed together or not at
all: a repetition finds the key and is acknowledged without work; after a failed handler there is no key and the message
is redelivered.

Invariant: the key is claimed before the handler runs, so of two simultaneous deliveries one waits for, or loses
against, the other. Effects outside of the given transaction (a mail, a call to another service) are not covered.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol

from aerobee.client.base.received import ReceivedMessage
from aerobee.errors import UsageError
from aerobee.property_names import DEDUP_KEY

log = logging.getLogger(__name__)

KEY_CHARS_MAX = 255  # longest key that is stored verbatim; a longer one is stored as its hash
KeyOf = Callable[[ReceivedMessage], str]
# Receives the message and the store's transaction: a SQLAlchemy connection or a Redis pipeline.
Effect = Callable[[Any], Any]


class DedupStore(Protocol):
    """Store of the keys, in the same database as the handler's data."""

    is_async: bool  # whether an effect may be a coroutine function

    async def run_once(self, group: str, key: str, effect: Effect) -> bool:
        """Run `effect` in a transaction that also stores the key; return False, without running it, for a known key.

        Raises what `effect` raises, or the store's own error; the transaction is then rolled back.
        """
        ...


def key_of(message: ReceivedMessage) -> str:
    """The producer's DEDUP_KEY if it gave one, else the message id: the same for every delivery of one send."""
    return message.properties.get(DEDUP_KEY) or message.message_id


def stored_key(key: str) -> str:
    """The key in stored form. Raises UsageError for an empty one."""
    if not key:
        raise UsageError(
            "the deduplication key of a message is empty: provide a key function that never "
            "returns an empty text"
        )
    if len(key) <= KEY_CHARS_MAX:
        return key
    return "sha256:" + hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def deduplicated(
    store: DedupStore,
    group: str,
    handler: Callable[[ReceivedMessage, Any], Any],
    *,
    key: KeyOf = key_of,
) -> Callable[[Any], Any]:
    """Return a handler for a consumer of `group` that runs `handler(message, connection)` once for each key.

    `key` identifies the effect that must happen once: one send by default, or a business key such as `lambda m:
    m.keys[0]`. With `batch_size` above 1 the messages of a list are handled one after the other, each in a separate
    transaction.
    """
    if not store.is_async and inspect.iscoroutinefunction(handler):
        raise UsageError(
            f"{type(store).__name__} is blocking and calls its handler in a thread, so `async def` cannot be awaited "
            "there: write `def`, or give SqlDedup an engine of create_async_engine()"
        )

    async def one(message: ReceivedMessage) -> None:
        name = stored_key(key(message))
        if not await store.run_once(group, name, lambda connection: handler(message, connection)):
            log.info("group %s: %s has already been handled (key %s)", group, message, name)

    async def handle(messages: Any) -> None:
        for message in messages if isinstance(messages, list) else [messages]:
            await one(message)

    return handle
