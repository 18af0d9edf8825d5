"""Takes and resigns the role of acting master (BrokerController.onMinBrokerChange, BrokerPreOnlineService of RocketMQ).

    slave     the group has no broker 0, this one has the smallest id, and no
              log of a master comes in                                         -> acting
    acting    broker 0 is in the group, or says itself that it is back (906),
              or its log comes in                                              -> slave
    master    at its start it tells each slave that it is back, and takes over what an acting one has delivered

Requests of peers (905, 906) only make it query its NameServers: these, or haMasterAddress, determine the master that a
slave follows. An acting master serves pulls, offsets, locks and POP. With enableRemoteEscape it delivers due messages
to other brokers, half messages too; without it, they wait for the master. It stores nothing: its log stays a copy of
its master's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aerobee.broker.acting.deliveries import ActingDeliveries
from aerobee.broker.acting.group_watch import GroupWatch
from aerobee.broker.acting.pops import ActingPops
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets, removed_of
from aerobee.broker.delay.escaped import EscapedDeliveries, parse_sources
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.replication.metadata_sync import TOKEN_FIELD, offsets_of
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import Role, RoleState
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import MASTER_ID
from aerobee.store.message_store import MessageStore
from aerobee.system_names import SYSTEM_GROUP_PREFIX

log = logging.getLogger(__name__)
HANDOVER_FIELD = "aerobeeHandover"  # field of 906: the reply's body lists the deliveries of the acting master
# Field of 906: number of deliveries that the master knows already.
HANDOVER_FROM_FIELD = "aerobeeHandoverFrom"
HANDOVER_PART = 100_000  # maximum number of deliveries in one reply: about a megabyte
# Longest wait of one reply for sends in flight: RocketMQ's masters wait 3 s for the reply.
HANDOVER_WAIT_S = 2.0
HANDOVER_TIMEOUT_S = 5.0  # of one request
HANDOVER_WHOLE_S = 20.0  # a send in flight ends in less: two requests to NameServers and one to a broker
# Time for a returned master to register at the NameServers. It first queries all its slaves: one may take
# this long, plus one request time each for its last reply and its offsets.
MASTER_WAIT_S = HANDOVER_WHOLE_S + 2 * HANDOVER_TIMEOUT_S + 5.0


class ActingMaster:
    """Makes a slave act as master while its master is away, in groups without controllers. Belongs to the event loop;
    start() once, stop() once.
    """

    def __init__(
        self,
        *,
        role: RoleState,
        live: LiveConfig,
        identity: BrokerIdentity,
        client: RemotingClient,
        schedule: Schedule,
        escaped: EscapedDeliveries,
        watch: GroupWatch,
        deliveries: ActingDeliveries,
        pops: ActingPops,
        ha_info: Handler,
        store: MessageStore,
        offsets: ConsumerOffsets,
        register: Callable[[], None],
        hears_master: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """`register` registers this broker at the NameServers; each reply names the master. `hears_master` returns
        whether the master's log is arriving now.
        """
        self._role = role
        self._live = live
        self._identity = identity
        self._client = client
        self._schedule = schedule
        self._escaped = escaped
        self._watch = watch
        self._deliveries = deliveries
        self._pops = pops
        self._ha_info = ha_info
        self._store = store
        self._offsets = offsets
        self._register = register
        self._hears_master = hears_master
        self._clock = clock
        self._master_due_s = float("-inf")
        self._master_seen = ""  # the master's address in the group, by the last reply
        self._watching: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._delivering: asyncio.Task[None] | None = None
        role.on_change(self._role_changed)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_broker_changed,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.ha_info,
        }

    def start(self) -> None:
        """Begin to watch the group."""
        self._watching = asyncio.create_task(self._watch.run(), name="acting-watch")

    async def stop(self) -> None:
        """Stop watching and delivering; sends in flight end first."""
        tasks = [each for each in (self._watching, self._asking, self._delivering) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pops.end()

    # --- presence of the master

    def min_broker_changed(self, peer: Peer, request: RemotingCommand) -> Reply:
        """905, oneway, from a NameServer: the group's smallest broker id changed. This broker queries the NameServers
        immediately."""
        if self._live.value.enable_slave_acting_master and self._is_slave:
            self._ask_now()
        return None if request.is_oneway else request.reply()

    def _ask_now(self) -> None:
        """Query the group again, unless a query is in flight."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._watch.look(), name="acting-look")

    def group_is(self, group: dict[int, str]) -> None:
        """A NameServer returned the live brokers of this broker name: broker id -> address."""
        if not self._is_slave:
            return
        before, self._master_seen = self._master_seen, group.get(MASTER_ID, "")
        self._group_is(group)
        if self._master_seen not in ("", before):
            self._register()  # the reply contains its HA port

    @property
    def _is_slave(self) -> bool:
        return self._role.role in (Role.SLAVE, Role.ACTING)

    def _group_is(self, group: Iterable[int]) -> None:
        smallest = min(group, default=MASTER_ID)
        if smallest != MASTER_ID and self._clock.monotonic() < self._master_due_s:
            return  # its master announced its return and is not registered yet
        # A master whose log arrives is alive: missing registrations at NameServers must not lead to two
        # masters.
        hears_master = self._hears_master()
        is_smallest = smallest == self._identity.broker_id
        if is_smallest and not hears_master and self._role.role is Role.SLAVE:
            self._role.change(
                Role.ACTING,
                f"the group {self._identity.name} has no master, and this is its smallest broker id",
            )
            self._register()
        elif (hears_master or not is_smallest) and self._role.role is Role.ACTING:
            is_back = hears_master or smallest == MASTER_ID
            self._role.change(
                Role.SLAVE, "its master is back" if is_back else f"broker {smallest} acts as master"
            )

    # --- services

    def _role_changed(self, role: RoleState) -> None:
        if role.role is Role.ACTING:
            self._pops.begin()
        else:
            self._pops.end()
        if role.role is Role.ACTING:
            if not self._live.value.enable_remote_escape:
                log.warning(
                    "due messages wait for the master: set enableRemoteEscape=true to send them to other brokers"
                )
                return
            before, self._delivering = self._delivering, None
            self._delivering = asyncio.create_task(self._deliver(before), name="acting-deliveries")
        else:
            self._deliveries.finish()

    async def _deliver(self, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await before
            if self._role.role is Role.ACTING:
                await self._deliveries.run()
        except Exception:
            # The task's outermost edge: due messages would wait for the master without a reason in the log.
            log.exception("the acting master's deliveries failed; what is due waits for the master")

    # --- the master is back

    async def ha_info(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """906. With values: the master is back. This broker stops acting before it replies, and reports its deliveries.

        The addresses are a hint: this broker queries the nameservers again and follows their answer. The reply waits
        for sends in flight, but not longer than the master's time-out: `isWhole` tells the master whether to repeat the
        request.
        """
        has_values = bool(request.field("masterHaAddress"))
        if not (has_values and self._is_slave and self._live.value.enable_slave_acting_master):
            reply = self._ha_info(peer, request)
            assert isinstance(reply, RemotingCommand)
            return reply
        self._master_due_s = self._clock.monotonic() + MASTER_WAIT_S
        if self._role.role is Role.ACTING:
            self._role.change(Role.SLAVE, f"its master is back, announced by {peer.address}")
        self._ask_now()
        delivering = self._delivering
        if delivering is not None:
            await asyncio.wait({delivering}, timeout=HANDOVER_WAIT_S)
        if request.field(HANDOVER_FIELD) != "true":
            return request.reply(ext={})
        start = json_fields.as_integer(request.field(HANDOVER_FROM_FIELD) or "0", HANDOVER_FROM_FIELD)
        part = self._escaped.part(max(0, start), HANDOVER_PART)
        is_over = delivering is None or delivering.done()
        body = {
            "sources": part,
            "levels": self._schedule.offsets,
            "isWhole": is_over and max(0, start) + len(part) >= len(self._escaped),
        }
        return request.reply(ext={HANDOVER_FIELD: "true"}, body=fastjson.dumps(body))

    async def come_back(self) -> bool:
        """At the start of a master: notify its slaves, and take over the deliveries of an acting one. Returns whether
        there were any.

        Without slaves it does nothing. A slave that does not reply within 5 s is skipped, and the messages that it
        delivered are delivered twice; so are those of a slave that does not finish within 20 s.
        """
        if not self._live.value.enable_slave_acting_master or self._is_slave:
            return False
        group = await self._watch.group()
        slaves = [address for broker_id, address in sorted(group.items()) if broker_id != MASTER_ID]
        found = await asyncio.gather(*map(self._take_over, slaves))
        return any(found)

    async def _take_over(self, slave: str) -> bool:
        """Query one slave until it has reported all deliveries; reported ones are kept, even if it does not finish."""
        until_s = self._clock.monotonic() + HANDOVER_WHOLE_S
        known, found = 0, False
        try:
            while True:
                count, is_news, is_whole = await self._ask_part(slave, known)
                known, found = known + count, found or is_news
                if is_whole:
                    break
                if self._clock.monotonic() >= until_s:
                    log.warning(
                        "the slave at %s still delivers after %.0f s: the deliveries that it "
                        "has not reported are repeated",
                        slave,
                        HANDOVER_WHOLE_S,
                    )
                    break
        except AerobeeError as error:
            log.warning("the slave at %s does not report its deliveries: %s", slave, error)
            return found
        await self._take_offsets(slave)
        if found:
            log.info("the slave at %s delivered messages as acting master; it reported %d", slave, known)
        return found

    async def _ask_part(self, slave: str, known: int) -> tuple[int, bool, bool]:
        """Returns the number of reported deliveries, whether any was new, and whether the report is complete."""
        identity = self._identity
        request = RemotingCommand(
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            {
                "masterAddress": identity.address,
                "masterHaAddress": identity.ha_address,
                "masterFlushOffset": "0",
                HANDOVER_FIELD: "true",
                HANDOVER_FROM_FIELD: str(known),
            },
        )
        reply = await self._client.invoke(slave, request, timeout_s=HANDOVER_TIMEOUT_S)
        checked(reply, address=slave, request="EXCHANGE_BROKER_HA_INFO")
        if (reply.ext or {}).get(HANDOVER_FIELD) == "true":
            fields = fastjson.loads_trusted(reply.body, "what an acting master has delivered")
            told = parse_sources(fields.get("sources", []))
        else:  # a RocketMQ slave: it reports the offsets of its delay levels, but no single messages
            asked = await self._client.invoke(
                slave, RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET), timeout_s=HANDOVER_TIMEOUT_S
            )
            body = checked(asked, address=slave, request="GET_ALL_DELAY_OFFSET").body
            fields, told = fastjson.loads_trusted(body, "delay offsets"), []
            fields = {"levels": fields.get("offsetTable", {})}
        levels = {
            json_fields.as_integer(level, "a delay level"): json_fields.as_integer(offset, "an offset")
            for level, offset in json_fields.mapping(fields, "levels").items()
        }
        # A slave's record after the end of this log was never in this log: another record will get that
        # offset.
        sources = [each for each in told if each < self._store.log.end]
        self._escaped.add(sources)
        at = self._schedule.offsets
        ahead = {level: offset for level, offset in levels.items() if offset > at.get(level, 0)}
        if ahead:
            self._schedule.delivered_elsewhere(ahead)
        return len(told), bool(sources or ahead), bool(fields.get("isWhole", True))

    async def _take_offsets(self, slave: str) -> None:
        """Groups continue at the offsets of the acting master, up to the end of this log. No offset moves back, and no
        offset that was removed here returns from a slave that had not replicated the removal."""
        request = RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET, {TOKEN_FIELD: ""})
        try:
            reply = await self._client.invoke(slave, request, timeout_s=HANDOVER_TIMEOUT_S)
            body = checked(reply, address=slave, request="GET_ALL_CONSUMER_OFFSET").body
            fields = fastjson.loads_trusted(body, "the offsets of a slave")
            table, removed = offsets_of(fields), removed_of(fields) or {}
        except AerobeeError as error:
            log.warning("the slave at %s does not return its offsets: %s", slave, error)
            return
        for each in table:
            known = self._offsets.query(each.group, each.topic, each.queue_id)
            if not self._offsets.has_same_removals(each.topic, each.group, removed):
                continue
            offset = min(each.offset, self._store.next_offset(each.topic, each.queue_id))
            if not each.group.startswith(SYSTEM_GROUP_PREFIX) and (known is None or known < offset):
                self._offsets.commit(each.group, each.topic, each.queue_id, offset, client="a slave")
