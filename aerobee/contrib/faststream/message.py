"""FastStream's message of this broker: ack(), nack() and reject() become verdicts on the delivery."""

from __future__ import annotations

from collections.abc import Iterable

from faststream.message import StreamMessage

from aerobee.contrib.faststream.incoming import Incoming, Settler

REJECTED = "rejected by the handler"


class AerobeeMessage(StreamMessage):
    """`raw_message` is an Incoming, of a batch subscriber a tuple of them, which share one verdict.

    Verdicts go to the brokers in the background, and are repeated until the broker accepts them.
    """

    raw_message: Incoming | tuple[Incoming, ...]

    async def ack(self) -> None:
        """Acknowledge: the group does not receive the message again."""
        if self.committed is None:
            for settler in self._settlers():
                settler.ack()
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Redeliver after `delay` seconds, None: `retry_delays_s` of the subscriber. Counts as a try of the group."""
        if self.committed is None:
            for settler in self._settlers():
                settler.nack(delay)
        await super().nack()

    async def reject(self, reason: str = REJECTED) -> None:
        """Dead-letter the message with `reason`."""
        if self.committed is None:
            for settler in self._settlers():
                settler.reject(reason)
        await super().reject()

    def _settlers(self) -> Iterable[Settler]:
        raw = self.raw_message
        for incoming in raw if isinstance(raw, tuple) else (raw,):
            if incoming.settler is not None:
                yield incoming.settler
