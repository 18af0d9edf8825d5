"""The calls of brokers and tools to a controller: 904, 1001 to 1006, 1011 to 1013. Source: ControllerRequestProcessor (RocketMQ).

Only the leader answers requests about groups; the others answer CONTROLLER_NOT_LEADER. A reply is sent only when this
controller surely leads (by its lease, or by a round that a majority answered). GET_METADATA_INFO and heartbeats are
taken by every controller. A change whose fate is not known after CALL_TIMEOUT_S is answered SYSTEM_ERROR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aerobee.errors import MalformedFrame, NotLeader, QuorumBusy
from aerobee.ha.controller.bodies import (
    elected_body,
    master_fields,
    read_names,
    read_sync_state_set,
    replicas_body,
    sync_state_set_body,
)
from aerobee.ha.controller.call_shares import CallShares
from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.commands import (
    CHECK_CODE_BYTES_MAX,
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerMetadata,
    Command,
    RegisterBroker,
    RenewSyncStateSet,
)
from aerobee.ha.controller.config import LiveControllerConfig
from aerobee.ha.controller.liveness import TIMEOUT_MS, Heartbeat
from aerobee.ha.controller.masters import Masters
from aerobee.ha.controller.state import ControllerState, Outcome
from aerobee.ha.packed import TEXT_BYTES_MAX
from aerobee.ha.raft.raft_service import RaftService
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import BROKER_ID_MAX
from aerobee.remoting.wire_name import check_wire_name

CALL_TIMEOUT_S = 5.0
HEARTBEAT_TIMEOUT_MS_MAX = 600_000
APART_MS_MAX = 600_000
NOT_LEADER_REMARK = "The controller is not in leader state"


class ControllerCalls:
    """Handlers of the calls of brokers and tools at one controller."""

    def __init__(
        self,
        *,
        config: LiveControllerConfig,
        state: ControllerState,
        raft: RaftService,
        masters: Masters,
        shares: CallShares,
    ) -> None:
        self._config = config
        self._state = state
        self._raft = raft
        self._masters = masters
        self._shares = shares

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._led(self.alter_sync_state_set),
            RequestCode.CONTROLLER_ELECT_MASTER: self._led(self.elect_master),
            RequestCode.CONTROLLER_REGISTER_BROKER: self._led(self.register_broker),
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._led(self.replica_info),
            RequestCode.CONTROLLER_GET_METADATA_INFO: self.metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._led(self.sync_state_data),
            RequestCode.CLEAN_BROKER_DATA: self._led(self.clean_broker_data),
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._led(self.next_broker_id),
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._led(self.apply_broker_id),
        }

    # -- what every controller takes

    def heartbeat(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """904. With `leaseWanted` (Aerobee's brokers) the answer says for how long no other broker becomes master."""
        if not request.field("brokerId"):
            return request.reply(ControllerCode.INVALID_REQUEST, remark="Heart beat with empty brokerId")
        timeout_ms = request.integer("heartbeatTimeoutMills", TIMEOUT_MS)
        heartbeat = Heartbeat(
            broker_name=_name(request, "brokerName"),
            broker_id=_broker_id(request, "brokerId"),
            address=_short(request, "brokerAddr", TEXT_BYTES_MAX) if request.field("brokerAddr") else "",
            ha_address=_short(request, "haAddress", TEXT_BYTES_MAX) if request.field("haAddress") else "",
            epoch=request.int32("epoch", -1),
            max_offset=request.integer("maxOffset", -1),
            confirm_offset=request.integer("confirmOffset", -1),
            timeout_ms=min(max(timeout_ms, 1), HEARTBEAT_TIMEOUT_MS_MAX),
            priority=request.int32("electionPriority", BROKER_ID_MAX),
            is_disk_sound=request.boolean("diskSound", True),
            is_learner=request.boolean("asyncLearner", False),
        )
        refusal = self._masters.refusal(
            heartbeat.broker_name, heartbeat.broker_id, heartbeat.address, heartbeat.ha_address
        )
        if refusal:
            return request.reply(ControllerCode.BROKER_ID_INVALID, remark=refusal)
        wants_lease = request.boolean("leaseWanted", False)
        lease_ms = self._masters.on_heartbeat(peer, heartbeat, wants_lease)
        ext: dict[str, str] = {}
        if wants_lease:
            ext["leaseMillis"] = str(int(lease_ms))
            group = self._state.groups.get(heartbeat.broker_name)
            if group is not None and self._raft.is_leading_surely:
                ext.update(master_fields(group))
        return request.reply(remark="Heart beat success", ext=ext or None)

    def metadata(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        config, status = self._config.value, self._raft.status
        peers = config.peers
        ext = {"group": config.controller_d_leger_group}
        if status.leader:
            ext["controllerLeaderId"] = status.leader
            if status.leader in peers:
                ext["controllerLeaderAddress"] = peers[status.leader]
        ext["isLeader"] = "true" if status.is_leader else "false"
        ext["peers"] = "".join(f"{name}:{address};" for name, address in peers.items())
        return request.reply(ext=ext)

    # -- what the leader answers

    async def next_broker_id(self, request: RemotingCommand) -> RemotingCommand:
        name = _name(request, "brokerName")
        return request.reply(
            ext={
                **_cluster(request),
                "brokerName": name,
                "nextBrokerId": str(self._state.next_broker_id(name)),
            }
        )

    async def apply_broker_id(self, request: RemotingCommand) -> RemotingCommand:
        name = _name(request, "brokerName")
        outcome = await self._masters.propose(
            ApplyBrokerId(
                broker_name=name,
                cluster_name=_name(request, "clusterName"),
                broker_id=_broker_id(request, "appliedBrokerId"),
                check_code=_short(request, "registerCheckCode", CHECK_CODE_BYTES_MAX),
            )
        )
        return _reply(request, outcome, {**_cluster(request), "brokerName": name})

    async def register_broker(self, request: RemotingCommand) -> RemotingCommand:
        name, broker_id = _name(request, "brokerName"), _broker_id(request, "brokerId")
        address = _name(request, "brokerAddress")
        refusal = self._masters.refusal(name, broker_id, address)
        if refusal:
            return request.reply(ControllerCode.BROKER_ID_INVALID, remark=refusal)
        group = self._state.groups.get(name)
        replica = group.replicas.get(broker_id) if group is not None else None
        if group is not None and replica is not None and replica.address == address:
            # no change that needs the quorum's agreement
            outcome = Outcome(ControllerCode.SUCCESS, group=group)
        else:
            outcome = await self._masters.propose(
                RegisterBroker(
                    broker_name=name,
                    cluster_name=_name(request, "clusterName"),
                    broker_id=broker_id,
                    address=address,
                )
            )
        ext = {**_cluster(request), "brokerName": name}
        group = outcome.group
        if outcome.code is not ControllerCode.SUCCESS or group is None:
            return _reply(request, outcome, ext)
        if group.master_id and self._masters.is_alive(name, group.master_id):
            ext.update(master_fields(group))
        return _reply(request, outcome, ext, sync_state_set_body(group.in_sync, group.set_epoch))

    async def elect_master(self, request: RemotingCommand) -> RemotingCommand:
        broker_id = request.integer("brokerId", -1)
        if not -1 <= broker_id <= BROKER_ID_MAX:
            raise MalformedFrame(f"brokerId is {broker_id}, expected -1 to {BROKER_ID_MAX}")
        requester = max(broker_id, 0)
        name = _name(request, "brokerName")
        apart_ms = min(max(request.integer("apartMillis", 0), 0), APART_MS_MAX)
        if apart_ms and (wait_ms := self._masters.wait_apart_ms(name, apart_ms)):
            return request.reply(
                ControllerCode.ELECT_MASTER_FAILED,
                ext={"waitMillis": str(round(wait_ms) + 1)},
                remark=f"another group's master changed a moment ago: ask again in {wait_ms:.0f} ms",
            )
        outcome = await self._masters.elect(
            name,
            requester_id=requester,
            preferred_id=requester if request.boolean("designateElect", False) else 0,
        )
        group = outcome.group
        if group is None:
            return _reply(request, outcome)
        if outcome.code is ControllerCode.SUCCESS:
            return _reply(request, outcome, master_fields(group), elected_body(group, with_brokers=True))
        if outcome.code is ControllerCode.MASTER_STILL_EXIST:
            return _reply(request, outcome, master_fields(group), elected_body(group, with_brokers=False))
        if outcome.code is ControllerCode.MASTER_NOT_AVAILABLE and requester:
            return request.reply(ControllerCode.ELECT_MASTER_FAILED, remark=outcome.remark)
        return _reply(request, outcome)

    async def alter_sync_state_set(self, request: RemotingCommand) -> RemotingCommand:
        name = _name(request, "brokerName")
        members, set_epoch = read_sync_state_set(request.body)
        master_id, master_epoch = _broker_id(request, "masterBrokerId"), _broker_id(request, "masterEpoch")
        known = self._state.groups.get(name)
        command: Command
        if (
            request.boolean("newSetEpochWanted", False)
            and known is not None
            and frozenset(members) == known.in_sync
        ):
            command = RenewSyncStateSet(
                broker_name=name, master_id=master_id, master_epoch=master_epoch, set_epoch=set_epoch
            )
        else:
            command = AlterSyncStateSet(
                broker_name=name,
                master_id=master_id,
                master_epoch=master_epoch,
                set_epoch=set_epoch,
                members=tuple(sorted(members)),
                alive=self._masters.alive(name),
            )
        outcome = await self._masters.propose(command)
        group = outcome.group
        if outcome.code is not ControllerCode.SUCCESS or group is None:
            return _reply(request, outcome)
        return _reply(
            request,
            outcome,
            {"newSyncStateSetEpoch": str(group.set_epoch)},
            sync_state_set_body(group.in_sync, group.set_epoch),
        )

    async def replica_info(self, request: RemotingCommand) -> RemotingCommand:
        group = self._state.groups.get(_name(request, "brokerName"))
        if group is None:
            return request.reply(
                ControllerCode.BROKER_METADATA_NOT_EXIST, remark="Broker metadata is not existed"
            )
        return request.reply(
            ext=master_fields(group, with_set_epoch=False),
            body=sync_state_set_body(group.in_sync, group.set_epoch),
        )

    async def sync_state_data(self, request: RemotingCommand) -> RemotingCommand:
        names = read_names(request.body)
        groups = [self._state.groups[name] for name in names if name in self._state.groups]
        return request.reply(body=replicas_body(groups, self._masters.is_alive, self._masters.ha_address))

    async def clean_broker_data(self, request: RemotingCommand) -> RemotingCommand:
        name = _name(request, "brokerName")
        text = request.text("brokerControllerIdsToClean", "").strip()
        parts = [part.strip() for part in text.split(";")] if text else []
        if not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in parts):
            return request.reply(
                ControllerCode.INVALID_CLEAN_BROKER_METADATA,
                remark=f"brokerControllerIdsToClean is {text[:80]!r}, expected ids separated by ';'",
            )
        is_living_allowed = request.boolean(
            "isCleanLivingBroker", request.boolean("cleanLivingBroker", False)
        )
        outcome = await self._masters.clean(
            CleanBrokerMetadata(
                broker_name=name,
                broker_ids=tuple(sorted({int(part) for part in parts})),
                is_cleaning_living_allowed=is_living_allowed,
                alive=self._masters.alive(name),
            )
        )
        return _reply(request, outcome)

    def _led(self, answer: Callable[[RemotingCommand], Awaitable[RemotingCommand]]) -> Handler:
        async def handle(peer: Peer, request: RemotingCommand) -> Reply:
            try:
                with self._shares.share(peer):
                    async with asyncio.timeout(CALL_TIMEOUT_S):
                        await self._raft.confirm()
                        return await answer(request)
            except NotLeader:
                return request.reply(ControllerCode.NOT_LEADER, remark=NOT_LEADER_REMARK)
            except QuorumBusy as error:
                return request.reply(ResponseCode.SYSTEM_BUSY, remark=str(error))
            except TimeoutError:
                return request.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"a majority of the controllers gave no answer in {CALL_TIMEOUT_S:.0f} s: "
                    "whether the change takes effect is not known, ask again",
                )

        return handle


def _reply(
    request: RemotingCommand, outcome: Outcome, ext: dict[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    return request.reply(outcome.code, remark=outcome.remark or None, ext=ext, body=body)


def _name(request: RemotingCommand, field: str) -> str:
    found = _short(request, field, TEXT_BYTES_MAX)
    if not found:
        raise MalformedFrame(f"the field <{field}> is empty")
    return found


def _cluster(request: RemotingCommand) -> dict[str, str]:
    return {"clusterName": _short(request, "clusterName", TEXT_BYTES_MAX)}


def _short(request: RemotingCommand, field: str, bytes_max: int) -> str:
    found = request.text(field)
    if len(found) > bytes_max or len(found.encode("utf-8", "replace")) > bytes_max:
        raise MalformedFrame(f"the field <{field}> has more than {bytes_max} bytes")
    return check_wire_name(found, f"the field <{field}>", bytes_max, is_required=False)


def _broker_id(request: RemotingCommand, field: str) -> int:
    found = request.integer(field)
    if not 0 <= found <= BROKER_ID_MAX:
        raise MalformedFrame(f"the field <{field}> is {found}, expected 0 to {BROKER_ID_MAX}")
    return found
