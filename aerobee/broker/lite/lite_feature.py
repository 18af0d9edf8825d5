"""Lite topics as a feature of the broker: assembles, starts and stops their parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aerobee.broker.lite.lite_calls import LiteCalls
from aerobee.broker.lite.lite_expiry import LiteExpiry
from aerobee.broker.lite.lite_info import LiteInfoCalls
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.pending_pops import PendingPops
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.state.feature import Feature
from aerobee.clock import Timer
from aerobee.lite_topic import LITE_PREFIX
from aerobee.remoting.peer import Handler

UPKEEP_S = 120.0  # liteTtlCheckInterval and liteSubscriptionCheckInterval


class _NoWatch:
    """Pops of lite topics are woken by LiteService: they watch no queue."""

    def watch(self, topic: str, queue_id: int) -> None:
        """Do nothing."""

    def unwatch(self, topic: str, queue_id: int) -> None:
        """Do nothing."""


class LiteTopics(Feature):
    """The lite topics of one broker."""

    name = "lite topics"
    needs = (Pop.name,)

    def __init__(
        self,
        parts: BrokerParts,
        pop: Pop,
        *,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`call_soon` as Pop's."""
        self._parts = parts
        self.service = LiteService(
            engine=pop.engine,
            store=parts.store,
            offsets=parts.offsets,
            groups=parts.groups,
            checks=pop.checks,
            waiting=PendingPops(
                clock=parts.clock,
                call_soon=call_soon or asyncio.get_running_loop().call_soon,
                watch=_NoWatch(),
                bounds=parts.bounds,
                access=parts.pending_pulls.access,
            ),
            stats=parts.stats,
            clock=parts.clock,
            spawn=parts.spawn,
            unserved=parts.unserved,
            pop_feature=Pop.name,
            is_enabled=parts.lmqs is not None,
        )
        self._expiry = LiteExpiry(
            store=parts.store,
            topics=parts.topics,
            offsets=parts.offsets,
            orders=pop.engine.orders,
            stats=parts.stats,
            clock=parts.clock,
            may_delete=lambda: parts.role.takes_writes,
        )
        pop.on_lite_free = self.service.on_free
        parts.pending_pulls.on_release_all(self.service.release_all)
        self._calls = LiteCalls(self.service, pop.withdrawals)
        self._info = LiteInfoCalls(
            service=self.service,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            offsets=parts.offsets,
            orders=pop.engine.orders,
            lmqs=parts.lmqs,
        )
        self._timer: Timer | None = None
        self._register_numbers()

    def _register_numbers(self) -> None:
        subscriptions = self.service.subscriptions
        self._parts.stats.registry.gauge(
            "lite_subscriptions", "Subscriptions of lite topics", lambda: subscriptions.count
        )
        self._parts.stats.registry.gauge(
            "lite_subscribers", "Clients that subscribe lite topics", lambda: len(subscriptions)
        )

    def handlers(self) -> Mapping[int, Handler]:
        return {**self._calls.handlers(), **self._info.handlers()}

    def runtime_info(self) -> Mapping[str, str]:
        return {"liteSubscriptions": str(self.service.subscriptions.count)}

    def start(self) -> None:
        self.service.begin()
        if self.service.is_enabled:
            self._timer = self._parts.clock.call_later(UPKEEP_S, self._upkeep)

    def stop(self) -> None:
        self.service.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def resign(self) -> None:
        self.stop()
        self.service.resign()

    def _upkeep(self) -> None:
        self._timer = self._parts.clock.call_later(UPKEEP_S, self._upkeep)
        self.service.forget_silent()
        if any(name.startswith(LITE_PREFIX) for name, _ in self._parts.store.queues):
            self._parts.spawn(self._expiry.run())
