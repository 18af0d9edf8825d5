"""Topics that a send creates automatically: which ones it may create, and the sends that wait until their topic is
durable.

A crash must not lose the topic of an acknowledged message, so the first send to a new topic waits until the topic
table's file is written. Source: TopicConfigManager.createTopicInSendMessageMethod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.send.send_header import SendHeader
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.refusal import group_unknown
from aerobee.broker.state.topic_table import TopicTable
from aerobee.errors import AerobeeError, RemoteError
from aerobee.message import RETRY_PREFIX
from aerobee.remoting.body.topic_config import SYS_FLAG_UNIT, TopicConfig
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import boolean_text
from aerobee.remoting.protocol import FAQ

# Sends that wait for topics that are being made, of all connections: each is some 3 KB, and they are all served in one turn when
# the file is written. RocketMQ's thread pool for sends holds 10,000 requests (sendThreadPoolQueueCapacity).
WAITING_SENDS_MAX = 2_000

T = TypeVar("T")
Serve = Callable[[AerobeeError | None], T | Coroutine[Any, Any, T]]


class NewTopics:
    """Creates topics for sends. Belongs to the event loop."""

    def __init__(self, *, topics: TopicTable, groups: GroupTable, live: LiveConfig) -> None:
        self._topics = topics
        self._groups = groups
        self._live = live
        self._waiting_count = 0  # sends whose topic is being created

    def make(self, header: SendHeader, serve: Serve[T]) -> T | Coroutine[Any, Any, T]:
        """Create the topic that a send names, and return what `serve` returns or raises. make() calls `serve` once:
        with None when the topic exists and is durable, else with the error (the topic may not be created, the broker is
        busy, or the table cannot be written).
        """
        try:
            config = self._wanted(header)
        except RemoteError as error:
            return serve(error)
        if self._waiting_count >= WAITING_SENDS_MAX:
            busy = (
                f"[OVERLOAD] {self._waiting_count} sends wait for topics that are being made: try again later"
            )
            return serve(RemoteError(ResponseCode.SYSTEM_BUSY, busy))
        waiting = _Waiting[T]()
        self._waiting_count += 1

        def made(error: AerobeeError | None) -> None:
            self._waiting_count -= 1
            # The send is served here, not in a task that runs later: the next send finds the topic, and must
            # not overtake this one.
            waiting.end(serve, error)

        self._topics.create_then(config, made)
        return waiting.outcome() if waiting.done.is_set() else waiting.when_done()

    def _wanted(self, header: SendHeader) -> TopicConfig:
        """The topic as it would be made. Raises RemoteError when it may not be."""
        name, may_create = header.topic, self._live.value.auto_create_topic_enable
        if name.startswith(RETRY_PREFIX):
            group = self._groups.find_or_create(name[len(RETRY_PREFIX) :])
            if group is None:
                raise group_unknown(name[len(RETRY_PREFIX) :])
            queue_nums = max(1, group.retry_queue_nums)
            return self._topics.retry_topic(group.group_name, queue_nums, unit=header.unit_mode)
        config = self._topics.from_template(
            name,
            template=header.default_topic,
            queue_nums=header.default_topic_queue_nums,
            unit_flag=SYS_FLAG_UNIT if header.unit_mode else 0,
            allow=may_create,
        )
        if config is None:
            raise RemoteError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! It cannot be created from "
                f"{header.default_topic or 'no template'} (autoCreateTopicEnable={boolean_text(may_create)}).\n{FAQ}",
            )
        return config


class _Waiting(Generic[T]):
    """A send that waits for its topic."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self._outcome: list[T | Coroutine[Any, Any, T]] = []  # of one
        self._failure: Exception | None = None

    def end(self, serve: Serve[T], error: AerobeeError | None) -> None:
        """Serve it now; its error must not affect other waiting sends."""
        try:
            self._outcome.append(serve(error))
        except Exception as failure:
            self._failure = failure
        self.done.set()

    def outcome(self) -> T | Coroutine[Any, Any, T]:
        """Its result. Raises what serving raised."""
        if self._failure is not None:
            raise self._failure
        return self._outcome[0]

    async def when_done(self) -> T:
        await self.done.wait()
        outcome = self.outcome()
        return await outcome if isinstance(outcome, Coroutine) else outcome
