"""Bodies and fields of the controller's calls, as RocketMQ's fastjson writes them. Core.

Source: SyncStateSet, ElectMasterResponseBody, BrokerReplicasInfo, and the headers in protocol/header/controller (RocketMQ).
Keys stand in alphabetical order, ids in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.ha.controller.commands import REPLICAS_MAX
from aerobee.ha.controller.state import Group
from aerobee.remoting.fastjson import dumps, loads, loads_object
from aerobee.remoting.protocol import BROKER_ID_MAX

NAMES_MAX = 10_000  # groups of one call
ROWS_MAX = 20_000  # brokers in one answer: some 20 ms of the event loop
_DIALECT_BYTES_MAX = 64 * 1024


def sync_state_set_body(members: Iterable[int], set_epoch: int) -> bytes:
    """SyncStateSet: the ids of the in-sync brokers, and the epoch of that set."""
    return dumps({"syncStateSet": sorted(members), "syncStateSetEpoch": set_epoch})


def read_sync_state_set(body: bytes) -> tuple[frozenset[int], int]:
    """(members, epoch) of a SyncStateSet. Raises MalformedFrame."""
    found = loads_object(body, "a sync state set", _DIALECT_BYTES_MAX)
    members, epoch = found.get("syncStateSet"), found.get("syncStateSetEpoch")
    if not isinstance(members, list) or len(members) > REPLICAS_MAX:
        raise MalformedFrame(f"syncStateSet is {members!r:.80}, expected at most {REPLICAS_MAX} ids")
    return frozenset(_id(each) for each in members), _id(epoch)


def elected_body(group: Group, *, with_brokers: bool) -> bytes:
    """ElectMasterResponseBody; it has the brokers' addresses only after an election."""
    body: dict[str, Any] = {}
    if with_brokers:
        body["brokerMemberGroup"] = {
            "brokerAddrs": {each: group.replicas[each].address for each in sorted(group.replicas)},
            "brokerName": group.broker_name,
            "cluster": group.cluster_name,
        }
    body["syncStateSet"] = sorted(group.in_sync)
    return dumps(body)


def replicas_body(
    groups: Iterable[Group], is_alive: Callable[[str, int], bool], ha_address: Callable[[str, int], str]
) -> bytes:
    """BrokerReplicasInfo: the brokers of each group, in sync or not, with `haAddress` where a broker (Aerobee's) reports it.

    Raises MalformedFrame when the groups have more than ROWS_MAX brokers.
    """
    groups = list(groups)
    if (count := sum(len(group.replicas) for group in groups)) > ROWS_MAX:
        raise MalformedFrame(
            f"{count} brokers are in these groups, at most {ROWS_MAX} in one answer: name fewer groups"
        )
    table = {}
    for group in groups:
        rows: dict[int, dict[str, Any]] = {
            each: {
                "alive": is_alive(group.broker_name, each),
                "brokerAddress": group.replicas[each].address,
                "brokerId": each,
                "brokerName": group.broker_name,
            }
            for each in sorted(group.replicas)
        }
        for each, row in rows.items():
            if address := ha_address(group.broker_name, each):
                row["haAddress"] = address
        info: dict[str, Any] = {
            "inSyncReplicas": [row for each, row in rows.items() if each in group.in_sync]
        }
        if group.master_id:
            info["masterAddress"] = group.master_address
            info["masterBrokerId"] = group.master_id
        info["masterEpoch"] = group.master_epoch
        info["notInSyncReplicas"] = [row for each, row in rows.items() if each not in group.in_sync]
        info["syncStateSetEpoch"] = group.set_epoch
        table[group.broker_name] = info
    return dumps({"replicasInfoTable": table})


def read_names(body: bytes) -> list[str]:
    """The broker names of a GET_SYNC_STATE_DATA, each once. Raises MalformedFrame."""
    if not body:
        return []
    found = loads(body, _DIALECT_BYTES_MAX)
    if (
        not isinstance(found, list)
        or len(found) > NAMES_MAX
        or not all(isinstance(each, str) for each in found)
    ):
        raise MalformedFrame(f"the body is {body[:80]!r}, expected at most {NAMES_MAX} broker names")
    return list(dict.fromkeys(found))


def master_fields(group: Group, *, with_set_epoch: bool = True) -> dict[str, str]:
    """The fields for a group's master; only the epochs when it has none."""
    fields = {}
    if group.master_id:
        fields = {"masterBrokerId": str(group.master_id), "masterAddress": group.master_address}
    fields["masterEpoch"] = str(group.master_epoch)
    if with_set_epoch:
        fields["syncStateSetEpoch"] = str(group.set_epoch)
    return fields


def _id(value: object) -> int:
    if type(value) is not int or not 0 <= value <= BROKER_ID_MAX:
        raise MalformedFrame(f"an id or epoch is {value!r:.40}, expected 0 to {BROKER_ID_MAX}")
    return value
