"""Maximum number of redeliveries: the consumer's setting, else the group's setting at the broker.

RocketMQ's client sends 16 by default, so the group's retryMaxTimes has no effect on it (apache/rocketmq 6369), and -1
(no limit) makes a RocketMQ broker dead-letter a message at its first failure (7842). Here a request leaves the bound to
the broker, and contains one only where the broker would not apply the group's setting. Ordered and popped messages are
counted by the consumer itself, which reads the setting (GET_SUBSCRIPTIONGROUP_CONFIG 352) when a message has failed.
"""

from __future__ import annotations

import asyncio
import logging

from aerobee.client.session.session import Session
from aerobee.errors import AerobeeError
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand

log = logging.getLogger(__name__)

RETRY_COUNT_DEFAULT = 16  # retryMaxTimes of a group without a setting
FOREVER = (1 << 31) - 1  # the largest int32: no message reaches that number of tries
KEPT_S = 30.0  # as routes
BROKERS_MAX = 1_024  # maximum number of remembered brokers; at the limit all are read again


class GroupRetries:
    """The bound of one group. Counts are deliveries after the first one."""

    def __init__(self, session: Session, group: str, retry_count_max: int = -1) -> None:
        """`retry_count_max`: the consumer's own bound; -1: the group's setting."""
        self._session = session
        self._group = group
        self._own = retry_count_max
        self._known: dict[str, tuple[float, int | None]] = {}  # broker name -> until when, retryMaxTimes
        self._reading = asyncio.Lock()

    async def bound(self, broker_name: str, topic: str) -> int:
        """Maximum number of redeliveries of messages of this broker; 16 when the broker does not return it."""
        if self._own >= 0:
            return self._own
        setting = await self._setting(broker_name, topic)
        if setting is None:
            return RETRY_COUNT_DEFAULT
        return setting if setting >= 0 else FOREVER

    async def requested(self, broker_name: str, topic: str) -> int | None:
        """The bound in a request for redelivery; None leaves it to the broker."""
        if self._own >= 0:
            return self._own
        setting = await self._setting(broker_name, topic)
        return FOREVER if setting is not None and setting < 0 else None

    async def _setting(self, broker_name: str, topic: str) -> int | None:
        """retryMaxTimes of the group at a broker, at most KEPT_S old; None when the broker does not return it."""
        async with self._reading:  # when many messages fail at the same time, only one reads the setting
            now = self._session.clock.monotonic()
            until, setting = self._known.get(broker_name, (0.0, None))
            if broker_name in self._known and now < until:
                return setting
            request = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG.value, {"group": self._group})
            try:
                address = await self._session.broker_address(broker_name, topic)
                answer = await self._session.invoke(address, request)
                setting = SubscriptionGroupConfig.decode(answer.body).retry_max_times
            except AerobeeError as error:
                # For a user without permission, a broker before 5.0 or a lost broker, the previous value
                # stays.
                log.debug("settings of group %s at %s: %s", self._group, broker_name, error)
            if len(self._known) >= BROKERS_MAX:
                self._known.clear()
            self._known[broker_name] = now + KEPT_S, setting
            return setting
