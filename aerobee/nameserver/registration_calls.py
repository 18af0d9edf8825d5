"""Requests of brokers: REGISTER, UNREGISTER_BROKER, QUERY_DATA_VERSION, BROKER_HEARTBEAT, GET_BROKER_MEMBER_GROUP.

Source: DefaultRequestProcessor (RocketMQ). Aerobee's brokers may send two further fields. `aerobeeListeners`,
"name=host:port,name=host:port", is the address to advertise to clients that are connected through the
listener of that name. `aerobeePart=true` marks a registration that contains a part of a large table: topics
that it lacks are not deleted.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Mapping

from aerobee.clock import Clock, steady_ms
from aerobee.errors import MalformedFrame, RemoteError
from aerobee.nameserver.answers import kv_table_body, member_group_body
from aerobee.nameserver.bounds import NameServerBounds
from aerobee.nameserver.config import LiveNameServerConfig
from aerobee.nameserver.kv_config import KvConfig
from aerobee.nameserver.min_broker_notice import MinBrokerNotices
from aerobee.nameserver.route_table import BrokerIdentity, Registration, RouteTable, TopicQueues
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.queue_mapping import EPOCH_AHEAD_MS_MAX, QueueMappingInfo
from aerobee.remoting.body.register_broker import (
    BOUNDS,
    Bounds,
    LongRegistration,
    RegisterBrokerBody,
    body_crc32,
)
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.fastjson import REQUEST_DIALECT_BYTES_MAX
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.protocol import LISTENERS_FIELD, ORDER_TOPIC_NAMESPACE, PART_FIELD
from aerobee.remoting.wire_name import check_wire_name

log = logging.getLogger("aerobee.nameserver")
ZONE_FIELD = "__ZONE_NAME"
NAME_CHARS_MAX = 255  # maximum length of names of clusters, brokers and zones
ADDRESS_CHARS_MAX = 300  # maximum length of an address; a host name has up to 253 characters
# Larger registrations are decoded off the event loop: a topic takes 10 us, a byte that is not standard JSON 1
# us.
IN_THE_LOOP = Bounds(bytes_max=64 * 1024, dialect_bytes_max=REQUEST_DIALECT_BYTES_MAX)
# "host:port", the host a name, an IPv4 address or an IPv6 address in brackets.
_ADDRESS = re.compile(r"^(\[[0-9a-fA-F:.%]+\]|[^\s:,;=\"]+):(\d{1,5})$")


class RegistrationCalls:
    """Request handlers for brokers. `watch` is called with the connection of each accepted registration."""

    def __init__(
        self,
        *,
        table: RouteTable,
        kv_config: KvConfig,
        config: LiveNameServerConfig,
        clock: Clock,
        notices: MinBrokerNotices,
        bounds: NameServerBounds,
        watch: Callable[[Peer], None],
    ) -> None:
        self._table = table
        self._kv_config = kv_config
        self._config = config
        self._clock = clock
        self._notices = notices
        self._bounds = bounds
        self._watch = watch
        self._reading = asyncio.Lock()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.unregister,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.member_group,
        }

    def register(
        self, peer: Peer, request: RemotingCommand
    ) -> RemotingCommand | Coroutine[None, None, RemotingCommand | None]:
        """103. A large table is decoded off the event loop, one at a time."""
        crc32 = request.integer("bodyCrc32", 0)
        if crc32 != 0 and body_crc32(request.body) != crc32:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        try:
            found = _registration(request, IN_THE_LOOP, self._clock.now_ms())
        except LongRegistration:
            return self._register_large(peer, request)
        return self._register(peer, request, *found)

    async def _register_large(self, peer: Peer, request: RemotingCommand) -> RemotingCommand | None:
        async with self._reading:
            found = await asyncio.to_thread(_registration, request, BOUNDS, self._clock.now_ms())
        if not peer.is_open:
            return None  # the broker disconnected meanwhile, so no event would remove its registration
        return self._register(peer, request, *found)

    def _register(
        self, peer: Peer, request: RemotingCommand, registration: Registration, left_out: tuple[str, ...]
    ) -> RemotingCommand:
        if left_out:
            log.warning(
                "broker %s registers %d topics that cannot be and are left out, the first: %s",
                registration.identity.name,
                len(left_out),
                left_out[0],
            )
        try:
            self._bounds.check(self._table, registration, peer.address)
        except RemoteError:
            # The previous registration stays: clients must not lose the broker because of one topic too many.
            identity = registration.identity
            self._table.heartbeat(identity.cluster, identity.address, now_ms=steady_ms(self._clock))
            raise
        result = self._table.register(
            registration,
            now_ms=steady_ms(self._clock),
            connection=peer,
            delete_missing_topics=self._config.value.delete_topic_with_broker_registration
            and not request.boolean(PART_FIELD, False),
        )
        if not result.accepted:
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"register broker failed: broker {registration.identity.name} sent one topic only before its "
                "whole table; send the whole table first, with two topics or more",
            )
        self._watch(peer)
        self._notices.send(result.changes)
        ext = {}
        if result.master_address:
            ext = {"haServerAddr": result.ha_address, "masterAddr": result.master_address}
        body = b""
        if self._config.value.return_order_topic_config_to_broker:
            order = self._kv_config.namespace(ORDER_TOPIC_NAMESPACE)
            body = b"" if order is None else kv_table_body(order)
        return request.reply(ext=ext, body=body)

    def unregister(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        self._notices.send(self._table.unregister(_identity(request)))
        return request.reply()

    def query_data_version(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        broker = _identity(request)
        asked = DataVersion.decode(request.body) if request.body else None
        known = self._table.version_of(broker.cluster, broker.address)
        changed = known is None or known != asked
        if not changed:
            self._table.heartbeat(broker.cluster, broker.address, now_ms=steady_ms(self._clock))
        return request.reply(
            ext={"changed": boolean_text(changed)}, body=b"" if known is None else known.encode()
        )

    def heartbeat(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        cluster, address = request.text("clusterName"), request.text("brokerAddr")
        self._table.heartbeat(cluster, address, now_ms=steady_ms(self._clock))
        return request.reply()

    def member_group(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        cluster, name = request.text("clusterName"), request.text("brokerName")
        body = member_group_body(cluster, name, self._table.member_addresses(name))
        return request.reply(body=body)


def parse_listener_addresses(text: str) -> dict[str, str]:
    """Parse "internal=10.0.0.1:10911,external=example.org:30911". Raises MalformedFrame."""
    addresses: dict[str, str] = {}
    for part in text.split(","):
        name, equals, address = part.strip().partition("=")
        if not name or not equals:
            raise MalformedFrame(f"{LISTENERS_FIELD} has {part!r}, must be name=host:port")
        check_wire_name(name, f"a listener of {LISTENERS_FIELD}", NAME_CHARS_MAX)
        addresses[name] = _address(address, LISTENERS_FIELD)
    return addresses


def _registration(
    request: RemotingCommand, bounds: Bounds, now_ms: int
) -> tuple[Registration, tuple[str, ...]]:
    """The registration, and the reasons for omitted topics. Raises LongRegistration, MalformedFrame."""
    body = RegisterBrokerBody.decode(
        request.body,
        compressed=request.boolean("compressed", False),
        sender_version=request.version,
        bounds=bounds,
    )
    mappings, wrong = _mappings(body, now_ms)
    acting = request.field("enableActingMaster")
    timeout = request.field("heartbeatTimeoutMillis")
    listeners = request.field(LISTENERS_FIELD)
    registration = Registration(
        identity=_identity(request),
        ha_address=check_wire_name(
            request.text("haServerAddr")[:ADDRESS_CHARS_MAX],
            "haServerAddr",
            ADDRESS_CHARS_MAX,
            is_required=False,
        ),
        heartbeat_timeout_ms=request.integer("heartbeatTimeoutMillis") if timeout else None,
        enable_acting_master=request.boolean("enableActingMaster") if acting else None,
        zone=_zone(request),
        listener_addresses=parse_listener_addresses(listeners) if listeners else {},
        topics={name: _queues(config) for name, config in body.topic_configs.topic_config_table.items()},
        version=body.topic_configs.data_version,
        filter_servers=tuple(
            check_wire_name(each, "a filter server", ADDRESS_CHARS_MAX) for each in body.filter_servers
        ),
        mappings=mappings,
    )
    return registration, body.left_out + wrong


def _zone(request: RemotingCommand) -> str | None:
    zone = request.field(ZONE_FIELD) or None
    return None if zone is None else check_wire_name(zone, ZONE_FIELD, NAME_CHARS_MAX)


def _mappings(body: RegisterBrokerBody, now_ms: int) -> tuple[dict[str, QueueMappingInfo], tuple[str, ...]]:
    """The mappings of static topics, and the reasons for omitted mappings: their topics are then served as
    plain topics.
    """
    found, wrong = {}, []
    for name, fields in (body.topic_configs.topic_queue_mapping_info_map or {}).items():
        try:
            info = QueueMappingInfo.from_dict(json_fields.as_object(fields, f"the mapping of {name[:80]!r}"))
            if not 0 <= info.epoch <= now_ms + EPOCH_AHEAD_MS_MAX:
                raise MalformedFrame(
                    f"the mapping of {name[:80]!r} has epoch {info.epoch}, which is no time of now"
                )
            found[name] = info
        except MalformedFrame as error:
            wrong.append(str(error))
    return found, tuple(wrong)


def _queues(config: TopicConfig) -> TopicQueues:
    return TopicQueues(config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)


def _identity(request: RemotingCommand) -> BrokerIdentity:
    cluster, name = request.text("clusterName"), request.text("brokerName")
    for what, text in (("clusterName", cluster), ("brokerName", name)):
        check_wire_name(text, what, NAME_CHARS_MAX)
    broker_id = request.integer("brokerId")
    if broker_id < 0:
        raise MalformedFrame(f"brokerId is {broker_id}, must be 0 (master) or above (slave)")
    return BrokerIdentity(cluster, name, _address(request.text("brokerAddr"), "brokerAddr"), broker_id)


def _address(text: str, what: str) -> str:
    match = _ADDRESS.match(text)
    if (
        len(text) > ADDRESS_CHARS_MAX
        or match is None
        or not text.isprintable()
        or not 0 < int(match[2]) <= 65_535
    ):
        raise MalformedFrame(f"{what} is {text[:100]!r}, must be host:port")
    return text
