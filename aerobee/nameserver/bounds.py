"""Bounds on the state of one NameServer: brokers, their addresses and topics, KV configuration.

Every bound is a key of NameServerConfig, looked up where it is used. The NameServer refuses a registration
that exceeds a bound; the previous registration of that broker stays valid, and the broker counts as alive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from aerobee.config import fields_by_key
from aerobee.nameserver.config import LiveNameServerConfig, NameServerConfig
from aerobee.nameserver.route_table import Registration, RouteTable, TopicQueues
from aerobee.remoting.peer_bounds import PeerBounds

log = logging.getLogger("aerobee.nameserver")
_FIELDS = {key: field.name for key, field in fields_by_key(NameServerConfig).items()}


class NameServerBounds(PeerBounds):
    """The bounds in force. Belongs to the event loop."""

    def __init__(self, config: LiveNameServerConfig, monotonic: Callable[[], float]) -> None:
        super().__init__(lambda key: int(getattr(config.value, _FIELDS[key])), log=log, monotonic=monotonic)

    def check(self, table: RouteTable, registration: Registration, address: str) -> None:
        """Raise RemoteError when `table` with this registration would exceed a bound. `address` is the broker's."""
        broker = registration.identity
        name = broker.name[:80]
        addresses = max(len(registration.listener_addresses), len(registration.filter_servers))
        self.require("brokerAddressNumsMax", addresses, f"addresses of broker {name}", address)
        if (broker.cluster, broker.address) not in table.live:
            self.require("registeredBrokerNumsMax", len(table.live) + 1, "registered brokers", address)
        if not table.is_member(broker):
            members = table.member_count(broker.name) + 1
            self.require("brokerGroupMembersMax", members, f"processes of broker name {name}", address)
        self.check_topics(table, broker.name, registration.topics, address)

    def check_topics(
        self, table: RouteTable, broker_name: str, topics: Mapping[str, TopicQueues], address: str
    ) -> None:
        """Raise RemoteError when a broker name would have too many topics with these."""
        new = table.new_topic_count(broker_name, topics)
        if new:
            count = table.topic_count(broker_name) + new
            self.require("brokerTopicNumsMax", count, f"topics of broker {broker_name[:80]}", address)
            self.require("routeEntryNumsMax", table.entry_count + new, "topics of all brokers", address)
