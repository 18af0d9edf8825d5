"""Measures the imbalance of a cluster from its brokers' counters."""

from __future__ import annotations

from aerobee.clock import Clock
from aerobee.placement.cluster import PlacementAdmin
from aerobee.placement.goals import imbalances_of
from aerobee.placement.model import Broker, Load, Model


async def measured_imbalance(
    admin: PlacementAdmin, *, clock: Clock, seconds: float
) -> dict[str, float] | None:
    """Imbalance of written bytes and of delivered messages over some seconds; None when no broker wrote any.

    All brokers with a master count, as if their capacities were equal. A broker's internal writes count.
    """
    masters = await admin.master_addresses()
    first = await admin.counters(masters)
    await clock.sleep(seconds)
    second = await admin.counters(masters)
    names = sorted(set(first) & set(second))
    if not names:
        return None
    gained = {
        name: Load(*(max(0.0, now - was) for was, now in zip(first[name], second[name], strict=True)))
        for name in names
    }
    if not sum(load.bytes_in for load in gained.values()):
        return None
    model = Model(brokers=tuple(Broker(name=name) for name in names), topics=())
    found = imbalances_of(model, gained)
    return {"bytes_in": found["bytes_in"], "messages_out": found["bytes_out"]}
