"""FastStream's plugin for FastAPI: handlers with FastAPI's dependencies, the broker in the lifespan. Needs `fastapi`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Unpack

from fastapi.datastructures import Default
from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

from aerobee.contrib.faststream.broker import AerobeeBroker as Broker
from aerobee.contrib.faststream.message import AerobeeMessage as Message
from aerobee.contrib.faststream.publisher import AerobeePublisher
from aerobee.contrib.faststream.settings import PublisherOptions, SubscriberOptions

__all__ = ["AerobeeBroker", "AerobeeMessage", "AerobeeRouter", "Context", "ContextRepo", "Logger"]

AerobeeMessage = Annotated[Message, Context("message")]
AerobeeBroker = Annotated[Broker, Context("broker")]

# Defaults of FastAPI's routes.
_RESPONSE_MODEL: dict[str, Any] = {
    "response_model": Default(None),
    "response_model_include": None,
    "response_model_exclude": None,
    "response_model_by_alias": True,
    "response_model_exclude_unset": False,
    "response_model_exclude_defaults": False,
    "response_model_exclude_none": False,
}


class AerobeeRouter(StreamRouter):
    """`router = AerobeeRouter("127.0.0.1:9876")`, `app.include_router(router)`: an APIRouter with subscriber() and
    publisher()."""

    broker_class = Broker
    broker: Broker

    def __init__(
        self, nameservers: str | Sequence[str] = "127.0.0.1:9876", *, context: Any = None, **options: Any
    ) -> None:
        """`options`: those of AerobeeBroker and of FastAPI's APIRouter."""
        super().__init__(nameservers, context=context, **options)

    def subscriber(self, topic: str, **options: Unpack[SubscriberOptions]) -> Any:
        """As AerobeeBroker.subscriber(); FastAPI's `response_model` and its siblings are options too."""
        return super().subscriber(topic, **{**_RESPONSE_MODEL, "dependencies": (), **options})

    def publisher(self, topic: str, **options: Unpack[PublisherOptions]) -> AerobeePublisher:
        """As AerobeeBroker.publisher()."""
        return self.broker.publisher(topic, **options)
