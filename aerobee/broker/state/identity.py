"""Identity of a broker: the names and addresses in routes, records and replies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """Fixed once the broker has bound its port.

    `address` and `ha_address` are "ip:port" as nameservers hand them to clients and replicas. `store_host` is the
    packed form of `address` that stands in every record and message id. `listeners` maps listener names to
    advertised addresses when there are named listeners.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str
    store_host: bytes
    region: str = "DefaultRegion"
    listeners: tuple[tuple[str, str], ...] = ()
