"""Routers: handlers of a module, which a broker includes with a prefix for their topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY

from aerobee.contrib.faststream.registrator import AerobeeRegistrator
from aerobee.contrib.faststream.settings import AerobeeBrokerConfig, PublisherOptions, SubscriberOptions


class AerobeePublisher(ArgsContainer):
    """A publisher of an AerobeeRoute: the arguments of `broker.publisher()`."""

    def __init__(self, topic: str, **options: Unpack[PublisherOptions]) -> None:
        super().__init__(topic, **options)


class AerobeeRoute(SubscriberRoute):
    """A handler of `AerobeeRouter(handlers=…)`: the arguments of `broker.subscriber()`."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[AerobeePublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **options)


class AerobeeRouter(AerobeeRegistrator, BrokerRouter):
    """`broker.include_router(AerobeeRouter(prefix="shop-"))`; `prefix` precedes the names of all its topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[AerobeeRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[AerobeeRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: Any = EMPTY,
    ) -> None:
        """The arguments are those of FastStream's routers."""
        super().__init__(
            handlers=handlers,
            config=AerobeeBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
