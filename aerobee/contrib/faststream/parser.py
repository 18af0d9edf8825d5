"""Converts deliveries to FastStream's messages, and their bodies by content type."""

from __future__ import annotations

from typing import Any

from faststream.message import decode_message

from aerobee.contrib.faststream.incoming import CONTENT_TYPE, Incoming
from aerobee.contrib.faststream.message import AerobeeMessage
from aerobee.contrib.faststream.tag_filter import ANY, TagFilter


class AerobeeParser:
    """`tag` gives the values of Path()."""

    def __init__(self, tag: TagFilter | None = None) -> None:
        self._tag = tag or TagFilter(ANY)

    async def parse_message(self, incoming: Incoming) -> AerobeeMessage:
        """One delivery."""
        return AerobeeMessage(
            raw_message=incoming,
            body=incoming.body,
            headers=incoming.headers,
            reply_to=incoming.reply_to,
            content_type=incoming.properties.get(CONTENT_TYPE),
            message_id=incoming.message_id,
            correlation_id=incoming.correlation_id,
            path=self._tag.path(incoming.tag) or {},
        )

    async def decode_message(self, message: Any) -> Any:
        """The body by its content type; without one JSON, or bytes that are not JSON."""
        return decode_message(message)

    async def parse_batch(self, batch: tuple[Incoming, ...]) -> AerobeeMessage:
        """Several deliveries of one handler call: headers, reply and ids are those of the first."""
        first = batch[0]
        headers = [incoming.headers for incoming in batch]
        return AerobeeMessage(
            raw_message=batch,
            body=[incoming.body for incoming in batch],
            headers=headers[0],
            batch_headers=headers,
            reply_to=first.reply_to,
            content_type=first.properties.get(CONTENT_TYPE),
            message_id=first.message_id,
            correlation_id=first.correlation_id,
            path=self._tag.path(first.tag) or {},
        )

    async def decode_batch(self, message: Any) -> list[Any]:
        """Each body by its own content type."""
        return [decode_message(await self.parse_message(incoming)) for incoming in message.raw_message]
