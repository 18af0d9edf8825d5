"""The topology page: NameServers, controllers, and the brokers of each group with role, epoch, in-sync state and lag.

The page is read once for all viewers, at most every FRESH_S. Names of what does not answer, and what is wrong, are part of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from aerobee.client import Admin, ClientConfig
from aerobee.clock import Clock
from aerobee.console.snapshot import Snapshot
from aerobee.errors import AerobeeError, RemoteError
from aerobee.ops.commands.ha import opened
from aerobee.remoting.codes import RequestCode

FRESH_S = 5.0
CONFIG_FRESH_S = 60.0


class Topology:
    """Reads the topology."""

    def __init__(self, admin: Admin, snapshot: Snapshot, clock: Clock, client: ClientConfig | None) -> None:
        self._admin = admin
        self._snapshot = snapshot
        self._clock = clock
        self._client = client
        self._gate = asyncio.Lock()
        self._read_s = self._controllers_s = -math.inf
        self._document: dict[str, Any] = {}
        self._controllers: tuple[str, ...] = ()

    async def document(self) -> dict[str, Any]:
        """NameServers, controllers and groups of brokers."""
        async with self._gate:
            if self._clock.monotonic() - self._read_s >= FRESH_S:
                self._document = await self._read()
                self._read_s = self._clock.monotonic()
            return self._document

    async def controllers(self) -> tuple[str, ...]:
        """controllerAddr of the brokers in controller mode, each different value once."""
        if self._clock.monotonic() - self._controllers_s >= CONFIG_FRESH_S:
            masters = [row["address"] for row in self._snapshot.brokers if not row.get("error")]
            configs = await asyncio.gather(*map(self._config, masters))
            found = {
                config["controllerAddr"]
                for config in configs
                if config.get("enableControllerMode", "").lower() == "true" and config.get("controllerAddr")
            }
            self._controllers, self._controllers_s = tuple(sorted(found)), self._clock.monotonic()
        return self._controllers

    async def elect(self, name: str, broker_id: int) -> str:
        """Make a replica the master of its group; returns its address. Raises RemoteError when the controllers refuse."""
        fields = {"clusterName": "", "brokerName": name, "brokerId": str(broker_id), "designateElect": "true"}
        async with opened((await self.controllers())[0], self._client) as quorum:
            answer = await quorum.call(RequestCode.CONTROLLER_ELECT_MASTER, fields)
        self._read_s = -math.inf  # the next page shows the change
        return (answer.ext or {}).get("masterAddress") or f"broker {broker_id}"

    async def _config(self, address: str) -> dict[str, str]:
        try:
            return await self._admin.broker_config(address)
        except AerobeeError:
            return {}  # the row of the broker says why

    async def _read(self) -> dict[str, Any]:
        quorums = await asyncio.gather(*map(self._quorum, await self.controllers()))
        known = {
            (group["brokerName"], replica["address"]): (group, replica)
            for quorum in quorums
            for group in quorum["groups"]
            for replica in group["brokers"]
        }
        rows = [dict(row) for row in self._snapshot.brokers]
        for row in rows:
            group, replica = known.pop((row["name"], row["address"]), ({}, {}))
            row |= _state(row, group, replica)
        rows += [_absent(group, replica) for group, replica in known.values()]
        names = sorted({(row["cluster"], row["name"]) for row in rows})
        groups = []
        for cluster, name in names:
            members = [row for row in rows if (row["cluster"], row["name"]) == (cluster, name)]
            has_master = any(row["role"] == "master" and not row.get("error") for row in members)
            groups.append(
                {
                    "cluster": cluster,
                    "name": name,
                    "trouble": "" if has_master else "no master: producers cannot send to this group",
                    "brokers": sorted(members, key=lambda row: (row["role"] != "master", row["address"])),
                }
            )
        return {
            "nameservers": await asyncio.gather(*map(self._nameserver, self._admin.nameserver_addresses)),
            "controllers": [{key: each[key] for key in each if key != "groups"} for each in quorums],
            "groups": groups,
        }

    async def _nameserver(self, address: str) -> dict[str, Any]:
        """One NameServer, and the brokers that it does not know."""
        try:
            info = await self._admin.cluster_info_at(address)
        except AerobeeError as error:
            return {"address": address, "brokers": None, "trouble": str(error)}
        there = {at for broker in info.broker_addr_table.values() for at in broker.broker_addrs.values()}
        missing = sorted({row["address"] for row in self._snapshot.brokers} - there)
        trouble = f"does not know {', '.join(missing)}: its clients do not find them" if missing else ""
        return {"address": address, "brokers": len(there), "trouble": trouble}

    async def _quorum(self, addresses: str) -> dict[str, Any]:
        """The controllers at "host:port;host:port"."""
        document: dict[str, Any] = {
            "addresses": addresses,
            "leader": "",
            "members": [],
            "groups": [],
            "trouble": "",
        }
        try:
            async with opened(addresses, self._client) as quorum:
                try:
                    status = await quorum.status()
                except RemoteError:  # a controller of RocketMQ, which does not know the request
                    return document | {"leader": await quorum.leader()}
        except AerobeeError as error:
            return document | {"trouble": str(error)}
        members = [
            {"id": each, "role": "leader" if each == status["leaderId"] else role}
            for role, ids in (("voter", status["voters"]), ("learner", status["learners"]))
            for each in ids
        ]
        return document | {
            "leader": status["leaderId"] or "",
            "term": status["term"],
            "members": members,
            "groups": status["brokerGroups"],
            "trouble": "" if status["leaderId"] else "no leader: no master can be elected",
        }


def _state(row: Mapping[str, Any], group: Mapping[str, Any], replica: Mapping[str, Any]) -> dict[str, Any]:
    """Epoch, in-sync state and trouble of a registered broker, from the controllers or from what brokers report."""
    ha = row.get("ha", {})
    trouble = [text for text in (row.get("error", ""), ha.get("ha_trouble", "")) if text]
    is_in_sync = None
    if replica:
        is_in_sync = replica["isInSync"]
        if not replica["isDiskSound"]:
            trouble.append("its disk takes no writes")
        elif not replica["isAlive"]:
            trouble.append("the controllers receive no heartbeats")
        if not is_in_sync:
            trouble.append("not in sync")
    if missing := ha.get("ha_missing"):
        trouble.append(f"in-sync replicas that are not connected: {missing}")
    trouble += [text for text in ha.get("ha_replicas", "").split(";") if "not in sync" in text]
    epoch = ha.get("ha_epoch", "")
    return {
        "controller_id": replica.get("brokerId"),
        "epoch": int(epoch) if epoch.isdecimal() and len(epoch) < 16 else group.get("masterEpoch"),
        "is_in_sync": is_in_sync,
        "state": ha.get("ha_role", ""),
        "trouble": "; ".join(dict.fromkeys(trouble)),
    }


def _absent(group: Mapping[str, Any], replica: Mapping[str, Any]) -> dict[str, Any]:
    """A broker that the controllers know and no NameServer lists."""
    return {
        "cluster": group["clusterName"],
        "name": group["brokerName"],
        "id": None,
        "address": replica["address"],
        "role": "gone",
        "controller_id": replica["brokerId"],
        "epoch": replica["epoch"] if replica["epoch"] >= 0 else None,
        "is_in_sync": replica["isInSync"],
        "state": "",
        "trouble": "it is not registered at the NameServers",
    }
