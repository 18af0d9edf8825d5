"""A controller of a quorum: wires Raft, groups, calls and listeners. Source: ControllerManager, DLedgerController (RocketMQ).

One listener serves brokers, tools and the other controllers, as DLedger's does. Agreed commands are on disk before any
reply; liveness is in memory. A controller whose disk fails ends: `failure` says why, `ended` is set.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from aerobee.clock import Clock, SystemClock
from aerobee.errors import AerobeeError, MalformedFrame
from aerobee.ha.controller.call_shares import CallShares
from aerobee.ha.controller.calls import ControllerCalls
from aerobee.ha.controller.config import CHANGEABLE_KEYS, ControllerConfig, LiveControllerConfig
from aerobee.ha.controller.families import controller_families
from aerobee.ha.controller.keys import KeyedRequests, no_challenge
from aerobee.ha.controller.masters import Masters
from aerobee.ha.controller.membership_calls import MembershipCalls
from aerobee.ha.controller.peer_check import PeerCheck
from aerobee.ha.controller.state import ControllerState
from aerobee.ha.raft.messages import Message, decode_message, source_of
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.peer_links import PeerLinks
from aerobee.ha.raft.raft_service import RaftService, RaftStatus, Runner
from aerobee.log_throttle import LogThrottle
from aerobee.monitoring.export import Export
from aerobee.monitoring.exposition import Family
from aerobee.monitoring.health import Health
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.body_limits import limit_bodies
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.server import Listener, RemotingServer, connections_max
from aerobee.remoting.settings_calls import SettingsCalls, SettingsRules
from aerobee.remoting.tls import ServerTls
from aerobee.remoting.unread_replies import UnreadReplies
from aerobee.store.files.disk import Disk, RealDisk
from aerobee.store.files.json_file import save_settings_file

QUORUM_LISTENER = "quorum"
EXTRA_LISTENER = "default"
PENDING_REPLY_BYTES_MAX = 64 << 20  # answers that peers have not read yet, all connections
UNREAD_LOOK_S = 1.0
HAND_OVER_S = 1.5  # longest that a stop waits for another leader
HAND_OVER_LOOK_S = 0.01
log = logging.getLogger("aerobee.controller")

IsOwn = Callable[[Peer, RemotingCommand], bool]
Guard = Callable[[Mapping[int, Handler], IsOwn], Mapping[int, Handler]]


def _to_the_newest(node: RaftNode, now_ms: float) -> None:
    """Transfer the leadership to the voter with the longest log."""
    have = node.progress()
    others = [each for each in node.log.membership.voters if each in have]
    node.transfer(max(others, key=lambda each: have[each]), now_ms)


class Controller:
    """One controller in the running event loop. `await start()`, and `await stop()` when done; not started twice."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        disk: Disk | None = None,
        tls: ServerTls | None = None,
        random_numbers: Callable[[], float] = random.random,
        runner: Runner | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Without more arguments: the system's clock, network, disk. `runner` runs steps of Raft, a thread by default. `guard` puts a
        gate before the handlers where no key is required; it receives what counts as this machine besides loopback addresses."""
        self.failure: Exception | None = None
        self.ended = asyncio.Event()
        self._was_unrecognized = False
        self.state = ControllerState()
        self._live = LiveControllerConfig(config)
        self._clock = clock or SystemClock()
        network = network or AsyncioNetwork()
        disk = disk or RealDisk()
        own_id, peers = config.controller_d_leger_self_id, config.peers
        self._client = RemotingClient(clock=self._clock, network=network, credentials=config.credentials)
        self._links = PeerLinks(
            group=config.controller_d_leger_group,
            addresses={name: address for name, address in peers.items() if name != own_id},
            client=self._client,
            clock=self._clock,
        )
        # With a key every frame is authenticated, independent of its source address.
        self._peer_check = None if config.authentication_enabled else PeerCheck(peers, self._clock)
        self._refused = LogThrottle(log, self._clock.monotonic)
        self._raft = RaftService(
            node_id=own_id,
            members=() if config.controller_joins_quorum else tuple(peers),
            config=config.raft,
            directory=config.directory,
            disk=disk,
            machine=self.state,
            clock=self._clock,
            random=random_numbers,
            send=self._links.send,
            on_status=self._on_status,
            on_failed=self._on_failed,
            runner=runner,
        )
        self._masters = Masters(
            config=self._live, state=self.state, raft=self._raft, client=self._client, clock=self._clock
        )
        self._handlers = self._make_handlers(disk, guard)
        self._server = RemotingServer(
            clock=self._clock,
            network=network,
            handlers=self._handlers,
            tls=tls,
            limits=ConnectionLimits(idle_close_s=config.server_channel_max_idle_time_seconds),
            admits=lambda: len(self._server.connections) < connections_max(config.server_connections_max),
        )
        self._unread = UnreadReplies(lambda: self._server.connections, limit_bytes=PENDING_REPLY_BYTES_MAX)
        self._unread_task: asyncio.Task[None] | None = None
        self.health = Health("controller")
        self.health.check("member", self._why_unrecognized)
        self.health.check("leader", lambda: "" if self.status.leader else "no controller leads")
        self.export = self._make_export() if config.exporters else None

    @property
    def config(self) -> ControllerConfig:
        """The settings in force."""
        return self._live.value

    @property
    def status(self) -> RaftStatus:
        """This controller's view of the quorum."""
        return self._raft.status

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """Request code -> handler, for the requests that this controller serves."""
        return self._handlers

    @property
    def address(self) -> str:
        """host:port at which the others know it."""
        return self.config.peers[self.config.controller_d_leger_self_id]

    @property
    def is_leading(self) -> bool:
        """Whether it leads the quorum and answers for it."""
        return self._raft.status.is_serving

    @property
    def members(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(voters, learners) of the quorum, as this one knows them."""
        status = self._raft.status
        return tuple(status.voters), tuple(status.learners)

    async def start(self) -> None:
        """Recover, listen, take part. Raises StoreLocked, StoreError, OSError (an address cannot be bound)."""
        config = self.config
        await self._raft.start()
        try:
            await self._server.start(listeners_of(config))
            if self.export is not None:
                await self.export.start()
        except BaseException:
            await self._server.stop(drain_s=0)
            await self._raft.stop()
            raise
        self.health.is_started = True
        self._links.start()
        self._masters.start()
        self._unread_task = asyncio.create_task(self._look_for_unread(), name="controller-unread")

    async def stop(self) -> None:
        """Let another one lead, take no further part, close everything. Agreed commands are on disk already."""
        if self.export is not None:
            await self.export.stop()
        await self._hand_over()
        await self._masters.stop()
        await self._raft.stop()
        await self._links.stop()
        if self._peer_check is not None:
            await self._peer_check.stop()
        if self._unread_task is not None:
            self._unread_task.cancel()
            await asyncio.gather(self._unread_task, return_exceptions=True)
        await self._server.stop(drain_s=self.config.shutdown_wait_time_seconds)
        await self._client.close()

    async def __aenter__(self) -> Controller:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def _hand_over(self) -> None:
        """Masters would be without a lease for as long as an election takes; with an order to stand, another one leads immediately."""
        if not self.status.is_leader or len(self.status.voters) < 2:
            return
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await self._raft.run(_to_the_newest)
                while self.status.is_leader:  # noqa: ASYNC110  the status has no event, and this ends within the time
                    await asyncio.sleep(HAND_OVER_LOOK_S)
        except (AerobeeError, TimeoutError) as error:
            log.info("the leadership was not handed over: %s", error or "no other controller took it in time")

    def families(self) -> Iterator[Family]:
        """Its numbers for /metrics."""
        config = self.config
        return controller_families(
            quorum=config.controller_d_leger_group,
            own_id=config.controller_d_leger_self_id,
            status=self.status,
            groups=list(self.state.groups.values()),
            alive=self._masters.alive,
            connections=len(self._server.connections),
        )

    def _make_export(self) -> Export:
        return Export(
            self.config,
            scope="controller",
            health=self.health,
            families=self.families,
            clock=self._clock,
            by_registry=True,
        )

    def _make_handlers(self, disk: Disk, guard: Guard | None) -> Mapping[int, Handler]:
        shares = CallShares()
        handlers: Mapping[int, Handler] = {
            **ControllerCalls(
                config=self._live, state=self.state, raft=self._raft, masters=self._masters, shares=shares
            ).handlers(),
            **config_calls(self._live, disk).handlers(),
            **MembershipCalls(
                config=self._live, state=self.state, raft=self._raft, masters=self._masters, shares=shares
            ).handlers(),
            RequestCode.AEROBEE_RAFT_MESSAGE: self._on_raft_message,
        }
        if self.config.authentication_enabled and (credentials := self.config.credentials) is not None:
            required = self.config.authentication_proof_required
            handlers = KeyedRequests(credentials, is_proof_required=required).guard(handlers)
        else:
            handlers = {**handlers, RequestCode.AEROBEE_CHALLENGE: no_challenge}
            if guard is not None:
                handlers = guard(handlers, self._is_own)
        return limit_bodies(
            handlers,
            {
                RequestCode.AEROBEE_RAFT_MESSAGE: self.config.raft.message_bytes_max,
                RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: 1 << 20,
            },
        )

    def _is_own(self, peer: Peer, request: RemotingCommand) -> bool:
        """Whether an administrator connects from this machine, although not over loopback: tools are redirected to the
        leader's address, so both ends of the connection then have that address. And who sits where a group's master
        runs may give its mastership away, as before an upgrade.
        """
        if isinstance(peer, Connection) and peer.own_host == peer.host_port[0]:
            return True
        return request.code == RequestCode.CONTROLLER_ELECT_MASTER and peer.host_port[
            0
        ] == self._masters.host_of_master(request.text("brokerName", ""))

    def _on_raft_message(self, peer: Peer, request: RemotingCommand) -> RemotingCommand | None:
        try:
            # A message from an unauthorized peer is not decoded: decoding the largest one takes half a
            # second.
            refusal = self._refusal_of_message(peer, request)
            message = None if refusal else self._message(request)
        except MalformedFrame as error:
            self._refused.warn("malformed", "%s sent an invalid message: %s", peer.address, error)
            peer.close("no message of this quorum")
            return None
        if message is None:
            return request.reply(ResponseCode.NO_PERMISSION, remark=refusal)
        self._raft.deliver(message)
        return request.reply()

    def _message(self, request: RemotingCommand) -> Message:
        config = self.config
        return decode_message(
            request.body, config.controller_d_leger_group, bytes_max=config.raft.message_bytes_max
        )

    def _refusal_of_message(self, peer: Peer, request: RemotingCommand) -> str:
        """Reason for refusing any message from this peer; "" when it is. Raises MalformedFrame."""
        if self._peer_check is None:
            return ""
        source = source_of(request.body, self.config.controller_d_leger_group)
        refusal = self._peer_check.refusal(source, peer.host_port[0])
        if refusal:
            kind = (
                source if source in self.config.peers else ""
            )  # an untrusted peer can invent any number of names
            self._refused.warn(kind, "a message of %s is refused: %s", source[:80], refusal)
        return refusal

    def _why_unrecognized(self) -> str:
        """Reason why this controller does not take part in the quorum; "" when it does."""
        if not self.status.is_unrecognized:
            return ""
        own_id = self.config.controller_d_leger_self_id
        return (
            f"the quorum knows {own_id} with another data directory than {self.config.directory}, whose votes this one has not: put the "
            f"lost one back, or run aerobee ha remove-controller {own_id}, then add-controller and promote-controller"
        )

    def _on_status(self, status: RaftStatus) -> None:
        if status.is_unrecognized and not self._was_unrecognized:
            log.critical("this controller takes no part: %s", self._why_unrecognized())
        self._was_unrecognized = status.is_unrecognized
        self._masters.on_status(status)

    def _on_failed(self, failure: Exception) -> None:
        log.critical("this controller cannot continue: %s", failure)
        self.failure = failure
        self.ended.set()

    async def _look_for_unread(self) -> None:
        while True:
            await self._clock.sleep(UNREAD_LOOK_S)
            self._unread.look()


def listeners_of(config: ControllerConfig) -> tuple[Listener, ...]:
    """Addresses at which a controller listens: its quorum address, and its listenPort if it differs."""
    own = Listener(QUORUM_LISTENER, config.bind_address, config.own_port)
    if config.listen_port in (0, config.own_port):
        return (own,)
    return own, Listener(EXTRA_LISTENER, config.bind_address, config.listen_port)


# UPDATE_CONTROLLER_CONFIG 1009 and GET_CONTROLLER_CONFIG 1010 (remoting/settings_calls.py).
RULES = SettingsRules(
    update=RequestCode.UPDATE_CONTROLLER_CONFIG,
    get=RequestCode.GET_CONTROLLER_CONFIG,
    has_effect=lambda key: key in CHANGEABLE_KEYS,
)


def config_calls(config: LiveControllerConfig, disk: Disk) -> SettingsCalls[ControllerConfig]:
    """The two requests for a running controller."""
    return SettingsCalls(
        config, RULES, save=partial(save_settings_file, disk), log=logging.getLogger("aerobee.controller")
    )
