"""Parts of a broker that serve once it knows its address: role, pending requests, features, the dispatch, the fast path.

The dispatch is one dict from request code to handler, assembled from the parts. A part receives its dependencies, never
the broker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from aerobee.broker.acting.switch import ActingSwitch
from aerobee.broker.admin.runtime_info import RuntimeInfo
from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.admission.overload import Overload
from aerobee.broker.admission.pending_access import PendingAccess
from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.assembly.call_parts import (
    CallPart,
    admin_calls,
    client_calls,
    pull_calls,
    queue_calls,
    replication_calls,
    request_modes,
)
from aerobee.broker.assembly.features import fast_path_kinds, lite_of, make_features, pop_of
from aerobee.broker.assembly.foundation import Foundation
from aerobee.broker.assembly.leading import Leading
from aerobee.broker.assembly.ports import Ports
from aerobee.broker.assembly.services import make_services
from aerobee.broker.delay.delay_levels import DelayLevels
from aerobee.broker.delay.deliveries import Deliveries
from aerobee.broker.delay.escaped import FILE_NAME as ESCAPED_FILE
from aerobee.broker.delay.escaped import EscapedDeliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.fastpath.access import FrameAccess
from aerobee.broker.fastpath.choice import BackendChoice, ReleasableRawAppends
from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.membership.registration import Registration
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pull.pending_pulls import PendingPulls
from aerobee.broker.replication.facts import replication_facts
from aerobee.broker.replication.ha_listener import HaListener
from aerobee.broker.replication.replication import Replication
from aerobee.broker.replication.wiring import make_replication
from aerobee.broker.send.delay_level import delay_level_hook
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.option_hooks import OptionFastPath
from aerobee.broker.send.unique_key import UniqueKeys
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.peer_brokers import PeerBrokers
from aerobee.broker.state.role import RoleState, first_role
from aerobee.broker.state.settled_decisions import SettledDecisions
from aerobee.errors import AerobeeError, StoreError
from aerobee.host_port import join_address, split_address
from aerobee.remoting.body_limits import BROKER_BODIES, MovingLimit, limit_bodies
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.peer import Handler
from aerobee.remoting.protocol import MASTER_ID
from aerobee.remoting.unread_replies import UnreadReplies
from aerobee.store.files.config import BrokerRole, StoreConfig
from aerobee.store.read.reader import record_reader
from aerobee.system_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.acting.acting_master import ActingMaster
    from aerobee.broker.replication.controller_wiring import ControllerMode

log = logging.getLogger(__name__)

SHARED_IDS_SHOWN_MAX = 5  # maximum number of shared client ids in brokerStatus, each with two addresses


class Serving:
    """The second half of a broker's parts, created in its event loop. `handlers` is the dispatch."""

    def __init__(
        self,
        base: Foundation,
        identity: BrokerIdentity,
        *,
        ports: Ports,
        ha_listener: HaListener,
        choice: BackendChoice,
    ) -> None:
        """Loads the state of the features. Raises ConfigError, StoreError."""
        loop = asyncio.get_running_loop()
        config, store = base.live.value, base.store
        self._base = base
        self._ports = ports
        self._choice = choice
        self.role = first_role(config, identity, base.store_config.broker_role)
        self.pending_pulls = PendingPulls(
            access=self._make_pending_access(loop),
            bounds=base.bounds,
            clock=base.clock,
            call_soon=loop.call_soon,
            record_at=record_reader(store.queues, store.log),
            requests=ports.requests,
        )
        store.on_arrival(self.pending_pulls.on_appended)
        base.offsets.on_reset(self.pending_pulls.reset)
        self.unread = UnreadReplies(lambda: ports.connections, limit_bytes=config.pending_reply_bytes_max)
        self.overload = Overload(
            wait_limit_ms=config.send_wait_limit_ms,
            pending_limit_bytes=config.pending_reply_bytes_max,
            pending_bytes=self.unread.look,
            stalled_s=lambda: ports.watch.stalled_s,
        )
        base.live.on_change(self._limits_changed)
        self.registration = Registration(
            client=base.client,
            topics=base.topics,
            mappings=base.mappings,
            identity=identity,
            role=self.role,
            live=base.live,
            clock=base.clock,
            on_master=self._master_found,
            broker_id=self._registered_id,
        )
        self._deliveries = Deliveries(
            store=store,
            topics=base.topics,
            stats=base.stats,
            waiting=self.pending_pulls.by_queue,
            choice=choice,
        )
        self._escaped = EscapedDeliveries(base.files.file(ESCAPED_FILE))
        self._escaped.load(store.log.min_offset, store.log.end)
        self.schedule = Schedule(
            store=store,
            deliveries=self._deliveries,
            file=base.files.file("delayOffset.json"),
            clock=base.clock,
            stats=base.stats,
            existing_queue=base.topics.existing_queue,
            escaped=self._escaped,
            lmqs=base.lmqs,
        )
        self.schedule.load()
        store.on_arrival(self.schedule.on_appended, SCHEDULE_TOPIC)
        self.parts = self._make_parts(identity)
        self._modes = request_modes(self.parts)
        self.controllers: ControllerMode | None = None
        self._ha_listener = ha_listener
        self.replication = self._make_replication(ha_listener)
        self.replication.after_cut.resume()  # before features read state that refers to it
        self.features = make_features(self.parts)
        self._load_features()
        self.leading = self._make_leading()
        self.services = make_services(self.parts, pop_of(self.features), lite_of(self.features).service)
        self._pulls = pull_calls(self.parts, self.services)
        self.acting = self._make_acting() if self.controllers is None else None
        self.handlers: Mapping[int, Handler] = self._make_handlers()
        self.fast_path = self._make_fast_path()

    def _load_features(self) -> None:
        """Load the features, and register their put hooks before that of delay levels."""
        for feature in self.features:
            feature.load()
            if feature.put_hook is not None:
                self.parts.writer.add_hook(
                    feature.put_hook, feature.name, accepts_early=feature.accepts_early
                )
        levels = len(self._base.store_config.delay_levels_ms())
        self.parts.writer.add_hook(
            delay_level_hook(levels), DelayLevels.name, accepts_early=DelayLevels.accepts_early
        )

    def _make_leading(self) -> Leading:
        agent = None if self.controllers is None else self.controllers.agent
        store = self._base.store
        leading = Leading(
            features=self.features,
            unserved=self._base.unserved,
            may_answer=lambda: agent is None or agent.mode.may_answer(),
            log_end=lambda: store.log.end,
            readable_end=lambda: store.readable_offset,
            hand_over=None if agent is None else agent.hand_over,
            clock=self._base.clock,
        )
        leading.register_numbers(self._base.stats.registry)
        return leading

    def _make_pending_access(self, loop: asyncio.AbstractEventLoop) -> PendingAccess | None:
        """The recheck of pending requests, with access control."""
        gate = self._base.access.gate
        if not gate.is_closed:
            return None
        made = PendingAccess(
            gate.look_again,
            clock=self._base.clock,
            call_soon=loop.call_soon,
            call_from_thread=loop.call_soon_threadsafe,
        )
        gate.on_change(made.changed)
        return made

    def _make_replication(self, listener: HaListener) -> Replication:
        """The role: configured, or assigned by the controllers."""
        base, make_raw = self._base, self._choice.make_raw_appender
        raw_appends = self._raw_appends = (
            None if make_raw is None else ReleasableRawAppends(make_raw(base.store))
        )
        if not base.live.value.enable_controller_mode:
            return make_replication(
                parts=self.parts,
                modes=self._modes,
                listener=listener,
                network=base.network,
                raw_appends=raw_appends,
                on_cut=self._log_cut,
                copy_features=self._copy_features,
            )
        from aerobee.broker.replication.controller_wiring import (
            make_controller_mode,  # loaded where it is wanted
        )

        self.controllers = make_controller_mode(
            parts=self.parts,
            modes=self._modes,
            listener=listener,
            network=base.network,
            raw_appends=raw_appends,
            on_cut=self._log_cut,
            copy_features=self._copy_features,
            on_role=self._role_given,
        )
        return self.controllers.replication

    def _log_cut(self, log_offset: int) -> None:
        """The end of this slave's log was cut off."""
        self.leading.log_cut(log_offset)

    async def _copy_features(self, master: str, is_following: Callable[[], bool]) -> None:
        """The features' copying from the master, of data that is neither in the log nor in the tables."""
        async with asyncio.TaskGroup() as tasks:
            for feature in self.features:
                tasks.create_task(feature.copy(master, is_following), name=f"copy-{feature.name}")

    def _make_acting(self) -> ActingSwitch:
        """The slave's acting for an absent master, where it is enabled."""
        ha_info = replication_calls(self.parts, self.replication)[0].ha_info

        def make() -> ActingMaster:
            from aerobee.broker.acting.wiring import make_acting_master  # loaded where it is wanted

            return make_acting_master(
                self.parts,
                registration=self.registration,
                features=self.features,
                ha_info=ha_info,
                hears_master=self._hears_master,
            )

        return ActingSwitch(live=self._base.live, make=make, ha_info=ha_info)

    def _hears_master(self) -> bool:
        """Whether this slave copies its master's log now."""
        following = self.replication.state().following
        return following is not None and following.is_connected

    # --- life

    async def prepare(self) -> None:
        """A returning master queries the deliveries during its absence, for 20 s at most. A master whose log was
        truncated accepts nothing before all consequences of the truncation are on disk. Call before start()."""
        if self.role.takes_writes:
            await self.replication.after_cut.finish()
        if self.acting is not None and await self.acting.come_back():
            for feature in self.features:
                await feature.take_over()

    def start(self) -> None:
        """Start timers and tasks; services that write messages start only at a broker that accepts messages."""
        self.replication.start()
        if not self.role.is_master and self._base.store_config.ha_master_address:
            self._master_found("", "")
        self._base.stats.start()
        self.overload.start()
        if self.role.takes_writes:
            self._base.lead()
            self.leading.lead_now()
        else:
            self.leading.follow()
        if self.acting is not None:
            self.acting.start()
        self.role.on_change(self._role_changed)

    def _role_changed(self, role: RoleState) -> None:
        """A broker that becomes master at run time rereads what another master has done meanwhile."""
        if role.takes_writes and not self.leading.leads:
            self._base.lead()
            self.leading.lead()
        elif not role.takes_writes and self.leading.leads:
            self._base.resign()
            self.leading.resign()
        elif role.serves_group and not role.takes_writes:
            self._base.make_missed_topics()

    def stop(self) -> None:
        """Cancel timers and tasks; nothing is written."""
        for part in (self._base.stats, self.overload):
            part.stop()
        if self.pending_pulls.access is not None:
            self.pending_pulls.access.stop()
        self.leading.stop()

    def close(self) -> None:
        """Close files and release native code, as the last step; nothing is written any more."""
        for feature in self.features:
            feature.close()
        self.fast_path.close()
        self._deliveries.close()
        if self._raw_appends is not None:
            self._raw_appends.close()

    def save(self) -> None:
        """As Broker.save."""
        base = self._base
        try:
            base.store.flush_now()
        except StoreError as error:
            log.error("the config files are not written: %s", error)
            return
        parts = (base.offsets, base.groups, base.topics)
        for save in (*(part.save for part in parts), *(feature.save for feature in self.features)):
            try:
                save()
            except AerobeeError as error:
                log.error("a config file cannot be written: %s", error)

    # --- made once

    def _make_parts(self, identity: BrokerIdentity) -> BrokerParts:
        """Shared parts of handlers and features."""
        base, expressions = self._base, Expressions()
        return BrokerParts(
            store=base.store,
            bounds=base.bounds,
            writer=MessageWriter(base.store, lmqs=base.lmqs, unserved=base.unserved),
            lmqs=base.lmqs,
            duplicates=base.duplicates,
            decisions=SettledDecisions(),
            unserved=base.unserved,
            topics=base.topics,
            mappings=base.mappings,
            groups=base.groups,
            offsets=base.offsets,
            consumers=base.consumers,
            producers=base.producers,
            locks=base.locks,
            stats=base.stats,
            schedule=self.schedule,
            escaped=self._escaped,
            deliveries=self._deliveries,
            pending_pulls=self.pending_pulls,
            ack=AckPolicy(
                store=base.store,
                clock=base.clock,
                timeout_ms=_answer_timeout_ms(base.store_config),
                requests=self._ports.requests,
            ),
            overload=self.overload,
            unique_keys=UniqueKeys(
                ip=identity.store_host[:4], process_id=os.getpid(), salt=random.getrandbits(32)
            ),
            expressions=expressions,
            filters=FilterTable(
                expressions=expressions,
                live=base.live,
                clock=base.clock,
                file=base.files.file("consumerFilter.json"),
                last_stored_ms=lambda: base.store.last_store_timestamp,
            ),
            live=base.live,
            identity=identity,
            role=self.role,
            client=base.client,
            brokers=PeerBrokers(
                client=base.client,
                nameservers=lambda: self.registration.nameservers,
                live=base.live,
                clock=base.clock,
            ),
            clock=base.clock,
            disk=base.disk,
            config_file=base.files.file,
            run_blocking=base.files.run_blocking,
            save_settings=base.files.save_settings,
            spawn=base.background.spawn,
            make_pop_records=self._choice.make_pop_records,
            may_send=base.access.gate.may_send,
            records=RecordAccess(base.access.gate),
        )

    def _make_handlers(self) -> dict[int, Handler]:
        """The dispatch: request code -> handler."""
        base, parts = self._base, self.parts
        info = RuntimeInfo(
            stats=base.stats,
            store=base.store,
            disk_usage=base.disk.usage,
            wait_ms=lambda: self.overload.wait_ms,
            accepts_sends_from_ms=lambda: base.live.value.start_accept_send_request_time_stamp,
            delivered=lambda: self.schedule.offsets,
            extra=self._runtime_extra,
        )
        calls: tuple[CallPart, ...] = (
            *queue_calls(parts, self.services, self._pulls),
            *client_calls(parts, self.services, self.registration),
            *admin_calls(parts, self.registration, info, self._modes),
            *replication_calls(parts, self.replication),
            *((self.acting,) if self.acting is not None else ()),
            *((self.controllers.calls,) if self.controllers is not None else ()),
            base.access.calls,
        )
        handlers: dict[int, Handler] = {}
        for part in calls:
            handlers.update(part.handlers())
        for feature in self.features:
            handlers.update(base.unserved.guard(feature.name, feature.handlers(), feature.always_served))
        # The body's size is checked before the gate: the gate may read the body to find the requested
        # resources, for any client with a key.
        heartbeats = MovingLimit("heartbeatBytesMax", lambda: base.live.value.heartbeat_bytes_max)
        return limit_bodies(
            base.access.gate.guard(handlers), BROKER_BODIES, {RequestCode.HEART_BEAT: heartbeats}
        )

    def _make_fast_path(self) -> FastPath:
        """The fast path, which serves ordinary frames before the handlers."""
        base, parts = self._base, self.parts
        delayed, transactions, pops = fast_path_kinds(self.features, parts)
        return FastPath(
            store=base.store,
            topics=base.topics,
            mappings=base.mappings,
            groups=base.groups,
            consumers=base.consumers,
            offsets=base.offsets,
            stats=base.stats,
            requests=self._ports.requests,
            ack=parts.ack,
            overload=self.overload,
            pending_pulls=self.pending_pulls,
            resume_pull=self._pulls.resume,
            live=base.live,
            identity=parts.identity,
            role=self.role,
            clock=base.clock,
            watch=self._ports.watch,
            choice=self._choice,
            delayed=delayed,
            transactions=transactions,
            pops=pops,
            options=OptionFastPath(
                duplicates=base.duplicates, epoch=lambda: self.role.epoch, store=base.store
            ),
            access=FrameAccess(base.access.gate) if base.access.is_closed else None,
            expressions=parts.expressions,
        )

    def _registered_id(self) -> int:
        """The id to register at NameServers: controllers assign ids from 1 on; the master registers 0."""
        if self.controllers is None:
            return self.parts.identity.broker_id
        return MASTER_ID if self.role.is_master else self.controllers.agent.broker_id

    @property
    def _own_id(self) -> int:
        """This broker's id at the controllers; -1 without."""
        return self.controllers.agent.broker_id if self.controllers is not None else -1

    def _role_given(self, epoch: int) -> None:
        """The controllers elected a master: NameServers accept the registration of the newest epoch."""
        self._base.topics.begin_epoch(epoch)
        if self.registration.is_started:
            self.registration.set_nameservers(self._base.live.value.nameservers)
            self.registration.register_all()

    def _master_found(self, address: str, ha_address: str) -> None:
        """A NameServer returned the master. haMasterAddress takes precedence."""
        if self.controllers is not None:
            self.controllers.agent.nameserver_says(address, ha_address)
            return
        named = self._base.store_config.ha_master_address
        if named and not address:
            host, port = split_address(named, "haMasterAddress")
            address = join_address(
                host, port - 1
            )  # the port at which RocketMQ's masters answer requests, until the actual one is known
        ha_address = named or ha_address
        if not self.role.is_master and ha_address:
            self.replication.become_slave(ha_address, master_address=address)

    def _limits_changed(self, config: BrokerConfig) -> None:
        self.unread.set_limit(config.pending_reply_bytes_max)
        self.overload.set_limits(
            wait_limit_ms=config.send_wait_limit_ms, pending_limit_bytes=config.pending_reply_bytes_max
        )

    def _runtime_extra(self) -> dict[str, str]:
        """Keys of brokerStatus beyond those of the store and the counters."""
        base, registered = self._base, self.registration.registered_at_ms
        return {
            "fastPath": self._choice.name,
            "loopWaitMaxMs": str(self.overload.wait_max_ms),
            "refusedSends": str(self.overload.refused_count),
            **replication_facts(self.replication.state(), self._own_id),
            **self._ports.runtime_info(),
            "portsNotBound": "\n".join(filter(None, (self._ha_listener.missing, self._ports.missing))),
            "indexTrouble": base.store.index.fault,
            "boundsReached": str(base.bounds.reached_count),
            "accessRefusals": str(base.access.gate.refused_count),
            "clientIdsShared": "\n".join(map(str, islice(base.consumers.shared_ids(), SHARED_IDS_SHOWN_MAX))),
            "dedupKeys": str(len(base.duplicates)),
            "dedupDroppedSends": str(base.duplicates.dropped_count),
            "dedupForgottenKeys": str(base.duplicates.forgotten_count),
            "unservedKinds": base.unserved.text(),
            **{
                f"registeredAt_{name}": str(registered.get(name, 0)) for name in self.registration.nameservers
            },
            **{key: text for feature in self.features for key, text in feature.runtime_info().items()},
        }


def _answer_timeout_ms(config: StoreConfig) -> int:
    """Longest delay of a reply: for the disk, and for replicas if the broker waits for them."""
    if config.broker_role is not BrokerRole.SYNC_MASTER:
        return config.sync_flush_timeout
    return max(config.sync_flush_timeout, config.slave_timeout)
