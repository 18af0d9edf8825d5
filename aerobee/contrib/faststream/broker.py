"""FastStream's broker over Aerobee or RocketMQ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from fast_depends import dependency_provider
from faststream import ContextRepo
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.response import PublishType
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ClientConfig, ProducerConfig
from aerobee.client.producer.producer import Producer
from aerobee.client.producer.transaction_producer import Checker, Transaction, TransactionProducer
from aerobee.contrib.faststream.access_log import logger_state
from aerobee.contrib.faststream.producer import REQUEST_TIMEOUT_S, AerobeeProducer
from aerobee.contrib.faststream.registrator import AerobeeRegistrator
from aerobee.contrib.faststream.response import AerobeePublishCommand, SendOptions
from aerobee.contrib.faststream.settings import AerobeeBrokerConfig
from aerobee.contrib.faststream.subscriber import AerobeeSubscriber
from aerobee.errors import AerobeeError

PRODUCER_GROUP = "faststream"
PING_WITHIN_S = 5.0


class OptionsOfSend(TypedDict, total=False):
    """Options of publish(); SendOptions describes each."""

    tag: str | None
    keys: tuple[str, ...]
    message_group: str | None
    delay: timedelta | float | None
    deliver_at: datetime | float | None
    priority: int | None


class AerobeeBroker(AerobeeRegistrator, BrokerUsecase):
    """`broker = AerobeeBroker("127.0.0.1:9876")`, `FastStream(broker)`; see docs/faststream.md."""

    _connection: Producer | None

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        client: ClientConfig | None = None,
        producer: ProducerConfig | None = None,
        producer_group: str = PRODUCER_GROUP,
        checker: Checker | None = None,
        create_topics: bool = True,
        queue_count: int = 8,
        graceful_timeout: float | None = 15.0,
        ack_policy: Any = EMPTY,
        decoder: Any = None,
        parser: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[AerobeeRegistrator] = (),
        id_generator: Callable[[], str] = gen_cor_id,
        security: BaseSecurity | None = None,
        specification_url: str | Iterable[str] | None = None,
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
    ) -> None:
        """`nameservers`: "host:port;host:port" or a sequence. `client`, `producer`: settings of the client.

        `checker`: decides on transactions of `producer_group` that were left open, see TransactionProducer; the group is
        the application's own then. `create_topics`: create topics, with `queue_count` queues per broker, and groups that
        do not exist. `security`: SASLPlaintext is the access key and the secret key, `use_ssl` is TLS. The other arguments
        are those of FastStream's brokers. Opens nothing before connect().
        """
        _check_producer_group(producer_group, checker)
        addresses = nameservers.split(";") if isinstance(nameservers, str) else list(nameservers)
        urls = [specification_url] if isinstance(specification_url, str) else specification_url
        config = AerobeeBrokerConfig(
            nameservers=nameservers,
            client=_client_config(client, security),
            create_topics=create_topics,
            queue_count=queue_count,
            producer=AerobeeProducer(parser, decoder),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=logger_state(logger=logger, log_level=log_level),
            fd_config=_dependencies(apply_types, serializer, provider, context),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            id_generator=id_generator,
            extra_context={"broker": self},
        )
        self._producer_group = producer_group
        self._producer_config = producer
        self._checker = checker
        super().__init__(
            routers=routers,
            config=config,
            specification=BrokerSpec(
                url=list(urls) if urls is not None else addresses,
                protocol=protocol or "rocketmq",
                protocol_version=protocol_version or "5",
                description=description,
                tags=tags,
                security=security,
            ),
        )

    async def _connect(self) -> Producer:
        config: AerobeeBrokerConfig = self.config.broker_config
        options: dict[str, Any] = {"config": self._producer_config, "client": config.client}
        producer = (
            Producer(config.nameservers, self._producer_group, **options)
            if self._checker is None
            else TransactionProducer(
                config.nameservers, self._producer_group, checker=self._checker, **options
            )
        )
        await producer.start()
        config.producer.connect(producer, config, self.config.broker_codec)
        return producer

    async def start(self) -> None:
        """Connect, join the groups of all subscribers, and begin to call handlers. Raises ConnectFailed without a
        NameServer."""
        await self.connect()
        self.config.logger.log("Connection established", logging.INFO, AerobeeSubscriber.log_context(None))
        await super().start()

    async def stop(self, *error: Any) -> None:
        """Stop the subscribers, each as AerobeeSubscriber.stop(), then close the producer."""
        try:
            await super().stop(*error)
        finally:
            connection, self._connection = self._connection, None
            self.config.broker_config.producer.disconnect()
            if connection is not None:
                await connection.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether a NameServer answers within `timeout` seconds (5), and this broker is connected."""
        if self._connection is None:
            return False
        config = self.config.broker_config
        try:
            async with asyncio.timeout(PING_WITHIN_S if timeout is None else timeout):
                async with Admin(config.nameservers, client=config.client) as admin:
                    await admin.cluster_info()
        except (AerobeeError, TimeoutError):
            return False
        return True

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        **options: Unpack[OptionsOfSend],
    ) -> Any:
        """Publish a message; a broker has stored it on return, and the SendResult says where.

        `message`: bytes, text, or what the serializer turns into JSON. `reply_to`: topic for what the handler returns.
        `timeout`: of the send, in seconds, retries included. `options`: tag, keys, message_group, delay, deliver_at,
        priority. Raises as Producer.send().
        """
        cmd = self._command(
            PublishType.PUBLISH, (message,), topic, headers, correlation_id, reply_to, timeout, options
        )
        return await self._basic_publish(cmd, producer=self.config.producer)

    async def publish_batch(
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        **options: Unpack[OptionsOfSend],
    ) -> Any:
        """Publish messages of one topic in few requests; a SendResult for each.

        With `message_group` they are stored in their order. Raises as Producer.send_batch().
        """
        cmd = self._command(
            PublishType.PUBLISH,
            messages or (None,),
            topic,
            headers,
            correlation_id,
            reply_to,
            timeout,
            options,
        )
        return await self._basic_publish_batch(cmd, producer=self.config.producer)

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[OptionsOfSend],
    ) -> Any:
        """Publish a request and wait for what the handler returns. Raises TimeoutError after `timeout` seconds."""
        cmd = self._command(
            PublishType.REQUEST, (message,), topic, headers, correlation_id, "", timeout, options
        )
        return await self._basic_request(cmd, producer=self.config.producer)

    @asynccontextmanager
    async def transaction(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        rollback_on: Sequence[type[BaseException]] = (),
        **options: Unpack[OptionsOfSend],
    ) -> AsyncIterator[Transaction]:
        """A block around local work, whose end makes the message visible. Needs a `checker`.

        Entering sends a half message, which no subscriber receives; leaving commits it. An exception leaves the transaction
        open, and the broker asks the checker, unless it is among `rollback_on`. See TransactionProducer.transaction().
        """
        cmd = self._command(
            PublishType.PUBLISH, (message,), topic, headers, correlation_id, "", None, options
        )
        transaction = await self._basic_publish(cmd, producer=_Half(self.config.producer, rollback_on))
        async with _entered(transaction):
            yield transaction

    def _command(
        self,
        kind: Any,
        messages: Sequence[Any],
        topic: str,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        reply_to: str,
        timeout: float | None,
        options: OptionsOfSend,
    ) -> AerobeePublishCommand:
        return AerobeePublishCommand(
            *messages,
            topic=topic,
            headers=dict(headers or {}),
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            options=SendOptions(**options),
            timeout=timeout,
            _publish_type=kind,
        )


class _Half:
    """What publish middlewares call instead of a producer: it sends the half message of a transaction."""

    def __init__(self, producer: Any, rollback_on: Sequence[type[BaseException]]) -> None:
        self._producer = producer
        self._rollback_on = rollback_on

    async def publish(self, cmd: AerobeePublishCommand) -> Any:
        return await self._producer.half(cmd, self._rollback_on)


@asynccontextmanager
async def _entered(transaction: Any) -> AsyncIterator[None]:
    """The rest of a transaction whose half message is sent."""
    try:
        yield
    except BaseException as error:
        await transaction.__aexit__(type(error), error, error.__traceback__)
        raise
    await transaction.__aexit__(None, None, None)


def _check_producer_group(producer_group: str, checker: Checker | None) -> None:
    if checker is not None and producer_group == PRODUCER_GROUP:
        raise SetupError(
            "a checker needs producer_group=…, the application's own: brokers ask any producer of the group about an "
            "open transaction"
        )


def _dependencies(
    apply_types: bool, serializer: Any, provider: Any, context: ContextRepo | None
) -> FastDependsConfig:
    return FastDependsConfig(
        use_fastdepends=apply_types,
        serializer=serializer,
        provider=provider or dependency_provider,
        context=context or ContextRepo(),
    )


def _client_config(client: ClientConfig | None, security: BaseSecurity | None) -> ClientConfig | None:
    if security is None:
        return client
    if type(security) not in (BaseSecurity, SASLPlaintext):
        raise NotImplementedError(f"AerobeeBroker does not support {type(security)}")
    if security.ssl_context is not None:
        raise SetupError("security has an ssl_context: name files instead, client=ClientConfig(tls=True, …)")
    base = replace(client or ClientConfig(), tls=bool(security.use_ssl) or (client or ClientConfig()).tls)
    if type(security) is SASLPlaintext:
        return replace(base, access_key=security.username, secret_key=security.password)
    return base
