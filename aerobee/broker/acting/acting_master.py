"""The role of an acting master, taken and given back (BrokerController.onMinBrokerChange, BrokerPreOnlineService of RocketMQ).

    slave     the group has no broker 0, this one has the smallest id, and no
              log of a master comes in                                         -> acting
    acting    broker 0 is in the group, or says itself that it is back (906),
              or its log comes in                                              -> slave
    master    at its start it tells each slave that it is back, and takes over what an acting one has delivered

What peers say (905, 906) makes it ask its nameservers and no more: whom a slave follows is what they, or haMasterAddress, say.
An acting master serves pulls, offsets, locks and POP. With enableRemoteEscape it delivers what is due to other brokers, half
messages too; without, they wait for the master. It stores nothing: its log stays the copy of its master's.
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
HANDOVER_FIELD = "aerobeeHandover"  # of 906: the answer's body says what was delivered meanwhile
HANDOVER_FROM_FIELD = "aerobeeHandoverFrom"  # of 906: so many deliveries are known already
HANDOVER_PART = 100_000  # deliveries in one answer: about a megabyte
HANDOVER_WAIT_S = 2.0  # for sends under way, in one answer: RocketMQ's masters wait 3 s for it
HANDOVER_TIMEOUT_S = 5.0  # of one request
HANDOVER_WHOLE_S = 20.0  # a send under way ends in less: two requests to nameservers and one to a broker
# For a master that said it is back to be known at the nameservers. It asks all its slaves before: one may take so long, its last
# answer and its offsets a request's time each.
MASTER_WAIT_S = HANDOVER_WHOLE_S + 2 * HANDOVER_TIMEOUT_S + 5.0


class ActingMaster:
    """Belongs to the event loop; start() once, stop() once. For brokers without controllers."""

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
        """`register` tells nameservers of this broker; each answers who the master is. `hears_master` says whether the master's
        log comes in at this moment."""
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
        self._master_seen = ""  # the master's address in the group, by the last answer
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
        """Watch and deliver no more; what is under way ends first."""
        tasks = [each for each in (self._watching, self._asking, self._delivering) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pops.end()

    # --- who is there

    def min_broker_changed(self, peer: Peer, request: RemotingCommand) -> Reply:
        """905, oneway, from a nameserver: the smallest id of the group is another one. This broker queries the nameservers immediately."""
        if self._live.value.enable_slave_acting_master and self._is_slave:
            self._ask_now()
        return None if request.is_oneway else request.reply()

    def _ask_now(self) -> None:
        """Ask for the group once more, unless that is under way."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._watch.look(), name="acting-look")

    def group_is(self, group: dict[int, str]) -> None:
        """A nameserver says who of this name is alive; broker id -> address."""
        if not self._is_slave:
            return
        before, self._master_seen = self._master_seen, group.get(MASTER_ID, "")
        self._group_is(group)
        if self._master_seen not in ("", before):
            self._register()  # the answer says where its HA port is

    @property
    def _is_slave(self) -> bool:
        return self._role.role in (Role.SLAVE, Role.ACTING)

    def _group_is(self, group: Iterable[int]) -> None:
        smallest = min(group, default=MASTER_ID)
        if smallest != MASTER_ID and self._clock.monotonic() < self._master_due_s:
            return  # its master said that it comes, and is not registered yet
        # A master whose log comes in lives: that nameservers do not know it is no reason for two to do one's work.
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

    # --- what it does

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
        """906. With values it is a master that is back: this broker stops acting before it answers, and says what it did.

        The addresses are a hint: this broker queries the nameservers again and follows their answer. Sends that are under way
        are waited for, not longer than the master waits for the answer: `isWhole` tells it whether to ask once more.
        """
        has_values = bool(request.field("masterHaAddress"))
        if not (has_values and self._is_slave and self._live.value.enable_slave_acting_master):
            reply = self._ha_info(peer, request)
            assert isinstance(reply, RemotingCommand)
            return reply
        self._master_due_s = self._clock.monotonic() + MASTER_WAIT_S
        if self._role.role is Role.ACTING:
            self._role.change(Role.SLAVE, f"its master is back, says {peer.address}")
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
        """A master starts: tell its slaves, and take over what one of them has delivered. Returns whether there was anything.

        Nothing is done without slaves; one that does not answer in 5 s is left out, and what it delivered comes twice, as does
        what it delivers when it does not come to its end in 20 s.
        """
        if not self._live.value.enable_slave_acting_master or self._is_slave:
            return False
        group = await self._watch.group()
        slaves = [address for broker_id, address in sorted(group.items()) if broker_id != MASTER_ID]
        found = await asyncio.gather(*map(self._take_over, slaves))
        return any(found)

    async def _take_over(self, slave: str) -> bool:
        """Ask one slave until it has told everything; what it told is kept, also when it does not come to its end."""
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
                        "the slave at %s still delivers after %.0f s: what it has not told comes twice",
                        slave,
                        HANDOVER_WHOLE_S,
                    )
                    break
        except AerobeeError as error:
            log.warning("the slave at %s does not say what it has delivered: %s", slave, error)
            return found
        await self._take_offsets(slave)
        if found:
            log.info("the slave at %s has delivered meanwhile; it told of %d messages", slave, known)
        return found

    async def _ask_part(self, slave: str, known: int) -> tuple[int, bool, bool]:
        """Returns how many deliveries the answer named, whether any was new, and whether that was all."""
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
        else:  # RocketMQ's: it says where its delay levels stand, and nothing of single messages
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
        # Behind the end of this log a record of the slave was never this master's: another one will have that offset.
        sources = [each for each in told if each < self._store.log.end]
        self._escaped.add(sources)
        at = self._schedule.offsets
        ahead = {level: offset for level, offset in levels.items() if offset > at.get(level, 0)}
        if ahead:
            self._schedule.delivered_elsewhere(ahead)
        return len(told), bool(sources or ahead), bool(fields.get("isWhole", True))

    async def _take_offsets(self, slave: str) -> None:
        """Groups continue where they were at an acting master, as far as this log goes; no offset goes back, and none that was removed
        here before the slave heard of it comes back."""
        request = RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET, {TOKEN_FIELD: ""})
        try:
            reply = await self._client.invoke(slave, request, timeout_s=HANDOVER_TIMEOUT_S)
            body = checked(reply, address=slave, request="GET_ALL_CONSUMER_OFFSET").body
            fields = fastjson.loads_trusted(body, "the offsets of a slave")
            table, removed = offsets_of(fields), removed_of(fields) or {}
        except AerobeeError as error:
            log.warning("the slave at %s does not tell its offsets: %s", slave, error)
            return
        for each in table:
            known = self._offsets.query(each.group, each.topic, each.queue_id)
            if not self._offsets.has_same_removals(each.topic, each.group, removed):
                continue
            offset = min(each.offset, self._store.next_offset(each.topic, each.queue_id))
            if not each.group.startswith(SYSTEM_GROUP_PREFIX) and (known is None or known < offset):
                self._offsets.commit(each.group, each.topic, each.queue_id, offset, client="a slave")
