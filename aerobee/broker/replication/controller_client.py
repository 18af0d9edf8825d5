"""Requests of a broker to controllers, Aerobee's or RocketMQ's: leader, broker id, group state, election, change of the
sync state set.

Calls go to the leading controller; when it no longer leads, or does not reply, the next call looks up the leader again.
Heartbeats go to every controller.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aerobee.errors import AerobeeError, ConnectFailed, MalformedFrame, RemoteError, TransportError
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode, ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps, loads_trusted
from aerobee.remoting.protocol import BROKER_ID_MAX
from aerobee.remoting.proven_client import prove

log = logging.getLogger(__name__)
TIMEOUT_S = 6.0  # a controller answers within 5 s, and an election waits for a lease
MEMBERS_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """State of this broker's group at the controllers. `master_id` 0: no broker leads."""

    master_id: int = 0
    master_address: str = ""
    master_epoch: int = 0
    set_epoch: int = 0
    members: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """A controller's reply to a heartbeat. `lease_ms` None: no support for leases (RocketMQ's); `group` only from a
    confirmed leader."""

    lease_ms: int | None
    group: GroupState | None


class ControllerClient:
    """Client of the controllers at `addresses`, "host:port" each."""

    def __init__(self, client: RemotingClient, *, cluster: str, name: str) -> None:
        self._client = client
        self._cluster = cluster
        self._name = name
        self._leader = ""

    def forget_leader(self) -> None:
        """Look up the leader again at the next call."""
        self._leader = ""

    async def next_broker_id(self, addresses: tuple[str, ...]) -> int:
        """The broker id that the controllers would assign to a new broker. Raises as any call."""
        answer = await self._call(addresses, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self._names())
        return _number(answer, "nextBrokerId")

    async def apply_broker_id(self, addresses: tuple[str, ...], broker_id: int, check_code: str) -> None:
        """Raises RemoteError CONTROLLER_BROKER_ID_INVALID when another broker has it."""
        ext = {**self._names(), "appliedBrokerId": str(broker_id), "registerCheckCode": check_code}
        await self._call(addresses, RequestCode.CONTROLLER_APPLY_BROKER_ID, ext)

    async def register(
        self, addresses: tuple[str, ...], broker_id: int, address: str, now_ms: int
    ) -> GroupState:
        """Register this broker's `address`; returns the master and the sync state set. Raises as any call."""
        ext = {
            **self._names(),
            "brokerId": str(broker_id),
            "brokerAddress": address,
            "invokeTime": str(now_ms),
        }
        return _group(await self._call(addresses, RequestCode.CONTROLLER_REGISTER_BROKER, ext))

    async def elect(
        self, addresses: tuple[str, ...], broker_id: int, now_ms: int, *, is_designated: bool = False
    ) -> GroupState:
        """Request the election of a master; an existing master is returned. `is_designated`: elect only broker
        `broker_id`, even if another one leads. Raises as any call."""
        ext = {
            **self._names(),
            "brokerId": str(broker_id),
            "designateElect": "true" if is_designated else "false",
            "invokeTime": str(now_ms),
        }
        still = (ResponseCode.CONTROLLER_MASTER_STILL_EXIST,)
        return _group(await self._call(addresses, RequestCode.CONTROLLER_ELECT_MASTER, ext, allowed=still))

    async def group(self, addresses: tuple[str, ...]) -> GroupState:
        """The master and the sync state set of this broker name. Raises as any call."""
        return _group(
            await self._call(addresses, RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": self._name})
        )

    async def replica_addresses(self, addresses: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
        """Addresses of the brokers of this name by id: "host:port" for requests, and for the HA port if known.

        Empty when the controllers know none. Raises as any call.
        """
        answer = await self._call(
            addresses, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, dumps([self._name])
        )
        table = loads_trusted(answer.body, "a controller's answer").get("replicasInfoTable")
        return _addresses(table.get(self._name) if isinstance(table, dict) else None)

    async def alter_set(
        self, addresses: tuple[str, ...], state: GroupState, members: frozenset[int], now_ms: int
    ) -> GroupState:
        """Request this sync state set as the master of `state`; return the present set, with a new epoch."""
        ext = {
            "brokerName": self._name,
            "masterBrokerId": str(state.master_id),
            "masterEpoch": str(state.master_epoch),
            "invokeTime": str(now_ms),
            # Aerobee's controllers then assign a new epoch to the present set; RocketMQ's ignore this field.
            "newSetEpochWanted": "true",
        }
        body = dumps({"syncStateSet": sorted(members), "syncStateSetEpoch": state.set_epoch})
        answer = await self._call(addresses, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)
        found = _group(answer)
        return GroupState(
            master_id=state.master_id,
            master_address=state.master_address,
            master_epoch=state.master_epoch,
            set_epoch=found.set_epoch,
            members=found.members,
        )

    async def heartbeat(self, address: str, ext: dict[str, str], timeout_s: float) -> HeartbeatAnswer:
        """Send a heartbeat to one controller. Raises TransportError, RemoteError."""
        request = RemotingCommand(RequestCode.BROKER_HEARTBEAT, {**ext, "leaseWanted": "true"})
        await prove(self._client, address, timeout_s)
        answer = checked(
            await self._client.invoke(address, request, timeout_s=timeout_s),
            address=address,
            request="BROKER_HEARTBEAT",
        )
        fields = answer.ext or {}
        lease = _number(answer, "leaseMillis") if "leaseMillis" in fields else None
        return HeartbeatAnswer(lease_ms=lease, group=_group(answer) if "masterEpoch" in fields else None)

    async def _call(
        self,
        addresses: tuple[str, ...],
        code: RequestCode,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        allowed: tuple[int, ...] = (),
    ) -> RemotingCommand:
        leader = self._leader or await self._find_leader(addresses)
        try:
            await prove(self._client, leader, TIMEOUT_S)
            answer = await self._client.invoke(leader, RemotingCommand(code, ext, body), timeout_s=TIMEOUT_S)
        except TransportError:
            self._leader = ""
            raise
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._leader = ""
        if answer.code in allowed:
            return answer
        return checked(answer, address=leader, request=request_name(code))

    async def _find_leader(self, addresses: tuple[str, ...]) -> str:
        failure: AerobeeError | None = None
        for address in addresses:
            try:
                request = RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO)
                await prove(self._client, address, 3.0)
                answer = checked(
                    await self._client.invoke(address, request, timeout_s=3.0),
                    address=address,
                    request="CONTROLLER_GET_METADATA_INFO",
                )
            except (TransportError, RemoteError) as error:
                failure = error
                continue
            self._leader = (answer.ext or {}).get("controllerLeaderAddress", "")
            if self._leader:
                return self._leader
        # Whatever the result of the leader look-up, the request itself was not sent.
        raise ConnectFailed(
            str(failure or "the controllers have no leader now"), address=";".join(addresses)
        ) from failure

    def _names(self) -> dict[str, str]:
        return {"clusterName": self._cluster, "brokerName": self._name}


def read_group(answer: RemotingCommand) -> GroupState:
    """The group state in a notice (1008). Raises MalformedFrame."""
    return _group(answer)


def _group(answer: RemotingCommand) -> GroupState:
    body = loads_trusted(answer.body, "a controller's answer") if answer.body else {}
    members = body.get("syncStateSet") or []
    if not isinstance(members, list) or len(members) > MEMBERS_MAX:
        raise MalformedFrame(f"syncStateSet is {members!r:.80}")
    set_epoch = body.get("syncStateSetEpoch", (answer.ext or {}).get("syncStateSetEpoch") or 0)
    address = answer.text("masterAddress", "")
    return GroupState(
        master_id=_number(answer, "masterBrokerId", 0) if address else 0,
        master_address=address,
        master_epoch=_number(answer, "masterEpoch", 0),
        set_epoch=_checked_number(set_epoch, "syncStateSetEpoch"),
        members=frozenset(_checked_number(each, "a broker id") for each in members),
    )


def _addresses(info: object) -> dict[int, tuple[str, ...]]:
    """The brokers of one entry of BrokerReplicasInfo. Raises MalformedFrame."""
    found: dict[int, tuple[str, ...]] = {}
    for key in ("inSyncReplicas", "notInSyncReplicas"):
        rows = (info.get(key) if isinstance(info, dict) else None) or []
        if not isinstance(rows, list) or len(rows) > MEMBERS_MAX:
            raise MalformedFrame(f"{key} is {rows!r:.80}")
        for row in rows:
            if not isinstance(row, dict):
                raise MalformedFrame(f"{key} has {row!r:.80}")
            addresses = tuple(row[name] for name in ("brokerAddress", "haAddress") if row.get(name))
            if not all(isinstance(each, str) for each in addresses):
                raise MalformedFrame(f"{key} has {row!r:.80}")
            found[_checked_number(row.get("brokerId"), "a broker id")] = addresses
    return found


def _number(answer: RemotingCommand, field: str, default: int | None = None) -> int:
    return _checked_number(answer.integer(field, default), field)


def _checked_number(value: object, what: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if type(value) is not int or not 0 <= value <= BROKER_ID_MAX:
        raise MalformedFrame(f"{what} is {value!r:.40}, expected 0 to {BROKER_ID_MAX}")
    return value
