"""FastStream's publishers of this broker: objects that publish to one topic, and decorators of handlers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from aerobee.contrib.faststream.response import AerobeePublishCommand, SendOptions


def spec_address(spec: type[Any], topic: str) -> dict[str, str]:
    """The field `address` of a specification, which FastStream has from 0.7.5 on."""
    return {"address": topic} if "address" in spec.__dataclass_fields__ else {}


@dataclass(kw_only=True)
class AerobeePublisherSpecificationConfig(PublisherSpecificationConfig):
    """What AsyncAPI says about a publisher."""

    topic: str


@dataclass(kw_only=True)
class AerobeePublisherConfig(PublisherUsecaseConfig):
    """Of one publisher."""

    topic: str
    options: SendOptions
    headers: dict[str, Any]
    reply_to: str
    batch: bool


class AerobeePublisherSpecification(PublisherSpecification):
    """AsyncAPI of a publisher."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Key of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, Any]:
        """The one channel of this publisher."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                description=self.config.description_,
                operation=Operation(
                    message=Message(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
                **spec_address(PublisherSpec, self.topic),
            )
        }


class AerobeePublisher(PublisherUsecase):
    """`publisher = broker.publisher("orders")`, then `@publisher` or `await publisher.publish(…)`."""

    def __init__(self, config: AerobeePublisherConfig, specification: AerobeePublisherSpecification) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.options = config.options
        self.headers = config.headers
        self.reply_to = config.reply_to
        self.batch = config.batch

    @property
    def topic(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *messages: Any,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        """As AerobeeBroker.publish(), with this publisher's topic, headers and options as defaults.

        A batch publisher takes several messages: `publish(first, "", second, third)`.
        """
        cmd = AerobeePublishCommand(
            message,
            *messages,
            topic=topic or self.topic,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.reply_to,
            options=SendOptions(**options).over(self.options),
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        send = self._basic_publish_batch if self.batch else self._basic_publish
        return await send(cmd, producer=self._outer_config.producer, _extra_middlewares=())

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        real = AerobeePublishCommand.from_cmd(cmd, batch=self.batch)
        real.destination = real.destination or self.topic
        real.reply_to = real.reply_to or self.reply_to
        real.add_headers(self.headers, override=False)
        real.with_options(self.options)
        send = self._basic_publish_batch if self.batch else self._basic_publish
        await send(real, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        """As AerobeeBroker.request(), with this publisher's topic, headers and options as defaults."""
        cmd = AerobeePublishCommand(
            message,
            topic=topic or self.topic,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            options=SendOptions(**options).over(self.options),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        return await self._basic_request(cmd, producer=self._outer_config.producer)


class ReplyPublisher(FakePublisher):
    """Sends the result of a handler to the client of a request, or to the topic of `reply_to`."""

    def __init__(self, producer: Any, *, topic: str = "", request: Any = None) -> None:
        super().__init__(producer=producer)
        self._topic = topic
        self._request = request

    def patch_command(self, cmd: PublishCommand) -> AerobeePublishCommand:
        """The command as a reply."""
        real = AerobeePublishCommand.from_cmd(super().patch_command(cmd))
        real.destination = self._topic
        real.request = self._request
        return real
