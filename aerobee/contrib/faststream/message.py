"""FastStream's message of this broker: ack(), nack() and reject() become verdicts on the delivery."""

from __future__ import annotations

from collections.abc import Iterable

from faststream.message import StreamMessage

from aerobee.contrib.faststream.incoming import REJECTED, Incoming


class AerobeeMessage(StreamMessage):
    """`raw_message` is an Incoming, of a batch subscriber a tuple of them. The verdict is that on each message of the batch that
    has none yet: `raw_message[0].reject()` decides on one, as with FastStream's broker for NATS.

    Verdicts go to the brokers in the background, and are repeated until the broker accepts them.
    """

    raw_message: Incoming | tuple[Incoming, ...]

    async def ack(self) -> None:
        """Acknowledge: the group does not receive the message again."""
        if self.committed is None:
            for incoming in self._incoming():
                incoming.ack()
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Redeliver after `delay` seconds, None: `retry_delays_s` of the subscriber. Counts as a try of the group."""
        if self.committed is None:
            for incoming in self._incoming():
                incoming.nack(delay)
        await super().nack()

    async def reject(self, reason: str = REJECTED) -> None:
        """Dead-letter the message with `reason`."""
        if self.committed is None:
            for incoming in self._incoming():
                incoming.reject(reason)
        await super().reject()

    def _incoming(self) -> Iterable[Incoming]:
        raw = self.raw_message
        return raw if isinstance(raw, tuple) else (raw,)
