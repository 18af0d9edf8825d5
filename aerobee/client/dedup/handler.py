"""Makes a handler's effect happen once for each message, although delivery is "at least once".

A message comes twice when a consumer dies between its work and the commit of its offset, when a queue changes its owner,
or when a producer sent it twice. The wrapper runs the handler inside one transaction of a store that the user picks;
the message's key is written in the same transaction. So either both are there or neither: a repetition finds the key
and is acknowledged without work, a failed handler leaves no key and is delivered again.

What always holds: the key is claimed before the handler runs, so of two deliveries at the same time one waits for, or
loses against, the other. What the handler does outside of the given transaction (a mail, a call of another service)
is not covered.
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

KEY_CHARS_MAX = 255  # stored as it is up to here, by its hash beyond
KeyOf = Callable[[ReceivedMessage], str]
# Gets what the store gives: a SQLAlchemy connection inside the transaction, a Redis pipeline.
Effect = Callable[[Any], Any]


class DedupStore(Protocol):
    """Where keys are kept, together with the handler's own data."""

    is_async: bool  # whether an effect may be a coroutine function

    async def run_once(self, group: str, key: str, effect: Effect) -> bool:
        """Run `effect` in a transaction that also notes the key; return False, without running it, for a known key.

        Raises what `effect` raises, or the store's own error; nothing is kept then.
        """
        ...


def key_of(message: ReceivedMessage) -> str:
    """The producer's DEDUP_KEY if it gave one, else the message id: the same for every delivery of one send."""
    return message.properties.get(DEDUP_KEY) or message.message_id


def stored_key(key: str) -> str:
    """The key as stores keep it. Raises UsageError for an empty one."""
    if not key:
        raise UsageError(
            "the deduplication key of a message is empty: give a key function that always finds one"
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

    `key` names what is to happen once: one send by default, or a business key such as `lambda m: m.keys[0]`. With
    `batch_size` above 1 the messages of a list are handled one after the other, each in a separate transaction.
    """
    if not store.is_async and inspect.iscoroutinefunction(handler):
        raise UsageError(
            f"{type(store).__name__} is blocking and calls its handler in a thread, so `async def` cannot be awaited "
            "there: write `def`, or give SqlDedup an engine of create_async_engine()"
        )

    async def one(message: ReceivedMessage) -> None:
        name = stored_key(key(message))
        if not await store.run_once(group, name, lambda connection: handler(message, connection)):
            log.info("group %s: %s was handled before (key %s)", group, message, name)

    async def handle(messages: Any) -> None:
        for message in messages if isinstance(messages, list) else [messages]:
            await one(message)

    return handle
