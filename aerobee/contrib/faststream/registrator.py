"""`subscriber()` and `publisher()` of brokers and routers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Unpack

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection

from aerobee.contrib.faststream.ordered_subscriber import OrderedSubscriber
from aerobee.contrib.faststream.pop_subscriber import PopSubscriber
from aerobee.contrib.faststream.publisher import (
    AerobeePublisher,
    AerobeePublisherConfig,
    AerobeePublisherSpecification,
    AerobeePublisherSpecificationConfig,
)
from aerobee.contrib.faststream.response import SendOptions
from aerobee.contrib.faststream.settings import Delivery, PublisherOptions, SubscriberOptions
from aerobee.contrib.faststream.subscriber import (
    AerobeeSubscriber,
    AerobeeSubscriberConfig,
    AerobeeSubscriberSpecification,
    AerobeeSubscriberSpecificationConfig,
)
from aerobee.contrib.faststream.tag_filter import TagFilter

_DELIVERY = frozenset(field.name for field in fields(Delivery))
_SEND = frozenset(field.name for field in fields(SendOptions))


def _taken(options: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: options.pop(name) for name in names & options.keys()}


def _refuse_unknown(options: dict[str, Any], what: str) -> None:
    if options:
        raise TypeError(f"{what}() got unknown options: {', '.join(sorted(options))}")


class AerobeeRegistrator(Registrator):
    """What a broker and a router register."""

    def subscriber(self, topic: str, **options: Unpack[SubscriberOptions]) -> AerobeeSubscriber:
        """Decorator of handlers of `topic`. Raises SetupError for options that exclude each other."""
        given: dict[str, Any] = dict(options)
        delivery = Delivery(**_taken(given, _DELIVERY))
        tag, calls = TagFilter(delivery.tag), CallsCollection()
        config = AerobeeSubscriberConfig(
            _outer_config=self.config,
            _ack_policy=given.pop("ack_policy", EMPTY),
            no_reply=given.pop("no_reply", False),
            topic=topic,
            delivery=delivery,
            tag=tag,
        )
        specification = AerobeeSubscriberSpecification(
            self.config,
            AerobeeSubscriberSpecificationConfig(
                topic=topic,
                title_=given.pop("title", None),
                description_=given.pop("description", None),
                include_in_schema=given.pop("include_in_schema", True),
            ),
            calls,
        )
        kind = OrderedSubscriber if delivery.ordered else PopSubscriber
        subscriber = kind(config, specification, calls)
        super().subscriber(subscriber, persistent=given.pop("persistent", True))
        subscriber.add_call(
            parser_=given.pop("parser", None) or self._parser,
            decoder_=given.pop("decoder", None) or self._decoder,
            codec_=given.pop("codec", None),
            dependencies_=given.pop("dependencies", ()),
        )
        _refuse_unknown(given, "subscriber")
        return subscriber

    def publisher(self, topic: str, **options: Unpack[PublisherOptions]) -> AerobeePublisher:
        """Decorator that publishes what a handler returns, and an object that publishes."""
        given: dict[str, Any] = dict(options)
        config = AerobeePublisherConfig(
            _outer_config=self.config,
            topic=topic,
            options=SendOptions(**_taken(given, _SEND)),
            headers=given.pop("headers", None) or {},
            reply_to=given.pop("reply_to", ""),
            batch=given.pop("batch", False),
        )
        specification = AerobeePublisherSpecification(
            self.config,
            AerobeePublisherSpecificationConfig(
                topic=topic,
                schema_=given.pop("schema", None),
                title_=given.pop("title", None),
                description_=given.pop("description", None),
                include_in_schema=given.pop("include_in_schema", True),
            ),
        )
        publisher = AerobeePublisher(config, specification)
        super().publisher(publisher, persistent=given.pop("persistent", True))
        _refuse_unknown(given, "publisher")
        return publisher

    def include_router(self, router: Any, **options: Any) -> None:
        """See FastStream. Raises SetupError for a router of another broker."""
        if not isinstance(router, AerobeeRegistrator):
            raise TypeError(
                f"Router must be an instance of AerobeeRegistrator, got {type(router).__name__} instead."
            )
        super().include_router(router, **options)
