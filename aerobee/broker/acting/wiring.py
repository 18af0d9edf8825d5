"""Assembles the acting master of a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aerobee.broker.acting.acting_master import ActingMaster
from aerobee.broker.acting.deliveries import ActingDeliveries
from aerobee.broker.acting.escape_bridge import EscapeBridge
from aerobee.broker.acting.group_watch import GroupWatch
from aerobee.broker.acting.pops import ActingPops
from aerobee.broker.membership.registration import Registration
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.state.feature import Feature
from aerobee.broker.timer.timer_feature import Timers
from aerobee.broker.transaction.service import Transactions
from aerobee.remoting.peer import Handler


def make_acting_master(
    parts: BrokerParts,
    *,
    registration: Registration,
    features: Iterable[Feature],
    ha_info: Handler,
    hears_master: Callable[[], bool],
) -> ActingMaster:
    """The acting master of these parts, not started yet. `hears_master` says whether the master's log arrives at this
    moment."""
    identity, live = parts.identity, parts.live
    kinds = {type(each): each for each in features}
    transactions, pops, timers = kinds[Transactions], kinds[Pop], kinds[Timers]
    assert isinstance(transactions, Transactions)
    assert isinstance(pops, Pop)
    assert isinstance(timers, Timers)
    bridge = EscapeBridge(
        client=parts.client, nameservers=lambda: live.value.nameservers, identity=identity, clock=parts.clock
    )
    inner_group = f"InnerProducerGroup_{identity.name}_{identity.broker_id}"
    deliveries = ActingDeliveries(
        store=parts.store,
        schedule=parts.schedule,
        escaped=parts.escaped,
        bridge=bridge,
        halves=transactions.open_halves,
        pending_timers=timers.pending,
        clock=parts.clock,
        inner_group=inner_group,
    )
    acting_pops = ActingPops(
        engine=pops.engine,
        store=parts.store,
        bridge=bridge,
        may_escape=lambda: live.value.enable_remote_escape,
        uses_retry_v2=lambda: live.value.enable_retry_topic_v2,
        spawn=parts.spawn,
        wake=pops.wake,
        clock=parts.clock,
        host=identity.store_host,
        inner_group=inner_group,
    )
    watch = GroupWatch(
        client=parts.client,
        registration=registration,
        live=live,
        clock=parts.clock,
        on_group=lambda group: acting.group_is(group),
    )
    acting = ActingMaster(
        role=parts.role,
        live=live,
        identity=identity,
        client=parts.client,
        schedule=parts.schedule,
        escaped=parts.escaped,
        watch=watch,
        deliveries=deliveries,
        pops=acting_pops,
        ha_info=ha_info,
        store=parts.store,
        offsets=parts.offsets,
        register=registration.register_all,
        hears_master=hears_master,
        clock=parts.clock,
    )
    return acting
