"""What a handler may return to say how it is sent, and the command that publish middlewares see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

from aerobee.contrib.faststream.incoming import CONTENT_TYPE, CORRELATION, EMPTY, EMPTY_BODY, REPLY_TO
from aerobee.message import Message

NO_PRIORITY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """How a message is sent, as in Message and Producer.send()."""

    tag: str | None = None
    """Tag that subscribers can filter by."""
    keys: tuple[str, ...] = ()
    """Index keys: `aerobee message key` finds the message by each of them."""
    message_group: str | None = None
    """Messages of one group keep their order at a subscriber with `ordered=True`."""
    delay: timedelta | float | None = None
    """Delay of the delivery: a timedelta, or seconds. The broker keeps the message until then."""
    deliver_at: datetime | float | None = None
    """Time of the delivery: a datetime with a time zone, or seconds since the epoch. Excludes `delay`."""
    priority: int | None = None
    """Priority, 0 and above, which chooses the queue."""

    def over(self, defaults: SendOptions) -> SendOptions:
        """These options, and those of `defaults` that these leave open."""
        if self == _NONE:
            return defaults
        is_timed = self.delay is not None or self.deliver_at is not None
        return SendOptions(
            tag=self.tag if self.tag is not None else defaults.tag,
            keys=self.keys or defaults.keys,
            message_group=self.message_group if self.message_group is not None else defaults.message_group,
            delay=self.delay if is_timed else defaults.delay,
            deliver_at=self.deliver_at if is_timed else defaults.deliver_at,
            priority=self.priority if self.priority is not None else defaults.priority,
        )


_NONE = SendOptions()


class AerobeeResponse(Response):
    """`return AerobeeResponse(body, message_group="order-17")`: a reply, or the message of a publisher."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tag: str | None = None,
        keys: tuple[str, ...] = (),
        message_group: str | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | float | None = None,
        priority: int | None = None,
    ) -> None:
        """See SendOptions. A reply to request() has no delay, keys, message group or priority."""
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = SendOptions(
            tag=tag,
            keys=keys,
            message_group=message_group,
            delay=delay,
            deliver_at=deliver_at,
            priority=priority,
        )

    def as_publish_command(self) -> AerobeePublishCommand:
        """The command of FastStream's publishers."""
        return AerobeePublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            options=self.options,
            _publish_type=PublishType.PUBLISH,
        )


class AerobeePublishCommand(BatchPublishCommand):
    """One send. `request` is the delivery that a reply answers; `timeout` of a request in seconds."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        options: SendOptions = _NONE,
        timeout: float | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.options = options
        self.timeout = timeout
        self.request: Any = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> AerobeePublishCommand:
        """A command of any broker; `batch`: a sequence is several messages."""
        if isinstance(cmd, AerobeePublishCommand) and not batch:
            return cmd
        body, extra = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *extra,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            options=getattr(cmd, "options", _NONE),
            timeout=getattr(cmd, "timeout", None),
            _publish_type=cmd.publish_type,
        )

    def properties(self, body: bytes, content_type: str | None) -> dict[str, str]:
        """User properties of the message. Header values become text."""
        found = {name: str(value) for name, value in self.headers.items()}
        if content_type:
            found[CONTENT_TYPE] = content_type
        if self.correlation_id:
            found[CORRELATION] = self.correlation_id
        if self.reply_to:
            found[REPLY_TO] = self.reply_to
        if not body:
            found[EMPTY] = "true"
        return found

    def message(self, body: bytes, content_type: str | None) -> Message:
        """The message to send. Raises UsageError for a topic, header or option that no message can have."""
        options = self.options
        return Message(
            self.destination,
            body or EMPTY_BODY,
            tag=options.tag,
            keys=options.keys,
            properties=self.properties(body, content_type),
            deliver_after=options.delay,
            deliver_at=options.deliver_at,
            priority=NO_PRIORITY if options.priority is None else options.priority,
        )

    def with_options(self, defaults: SendOptions) -> AerobeePublishCommand:
        """Complete the options by those of a publisher."""
        self.options = self.options.over(defaults)
        return self
