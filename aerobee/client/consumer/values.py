"""Values for handlers: each message is read by the consumer's deserializer before the handler gets it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from aerobee.client.base.received import ReceivedMessage, read_value, was_given_back
from aerobee.client.base.verdict import RetryLater, give_back_after
from aerobee.client.consumer.give_back import GivesBack
from aerobee.client.serialize.serializer import Deserializer, deserialized
from aerobee.errors import BodyUnreadable, MessageDamaged

Handler = Callable[[Any], Any]


def with_values(handler: Handler, deserializer: Deserializer, gives_back: GivesBack | None) -> Handler:
    """The handler, with `message.value` of each message. One message whose body cannot be read raises BodyUnreadable, after
    which the consumer dead-letters it. Of a list only that message goes to the dead letters, by `gives_back`, and the
    handler gets the others, also when the list comes again; it comes later when no broker takes the message. Without
    `gives_back`, as for a broadcast, the list fails.
    """
    read = partial(deserialized, deserializer)

    async def readable(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        found = []
        for message in messages:
            if was_given_back(message):
                continue
            try:
                read_value(message, read)
            except (BodyUnreadable, MessageDamaged) as error:
                if gives_back is None:
                    raise
                if not await gives_back.give_back(message, give_back_after(error)):
                    raise RetryLater(f"no broker takes a message to the dead letters: {error}") from error
            else:
                found.append(message)
        return found

    async def handle(work: Any) -> Any:
        if isinstance(work, list):
            work = await readable(work)
            if not work:
                return None
        else:
            read_value(work, read)
        returned = handler(work)
        return await returned if inspect.isawaitable(returned) else returned

    return handle
