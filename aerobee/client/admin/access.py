"""Admin calls on users and policies of ACL 2.0: requests 3001 to 3010.

Source: CreateUserRequestHeader and its siblings, UserInfo, AclInfo (RocketMQ 5.5.0). Every broker stores its own
users, slaves too; Aerobee's NameServers do so where access control is on. A change is sent to all of these servers; a
list states the servers that store each user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee.client.admin.base import AdminCalls
from aerobee.errors import (
    MalformedFrame,
    NoBroker,
    NoPermission,
    RemoteSystemError,
    RequestNotSupported,
    UsageError,
)
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand

SUBJECT = "User:{}"
CUSTOM, DEFAULT = "Custom", "Default"  # policies: DEFAULT applies to resources without a CUSTOM entry
ROWS_MAX = 100_000  # maximum size of one server's reply


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A user as servers return it, without the secret key. `addresses`: the servers that store exactly this state."""

    name: str
    is_super: bool
    is_enabled: bool
    addresses: tuple[str, ...] = ()


def merged_actions(
    entries: Sequence[PolicyEntryInfo], actions: Sequence[str], *, is_allowed: bool, source_ips: Sequence[str]
) -> tuple[str, ...]:
    """The actions of the existing entries of one resource and policy, followed by the new `actions`; All excludes the
    others.

    A server stores one entry per resource. Raises UsageError when an existing entry has another decision or other
    sources: one entry cannot express both.
    """
    for each in entries:
        if each.is_allowed is not is_allowed or set(each.source_ips) != set(source_ips):
            raise UsageError(
                f"user {each.user} has an entry for {each.resource} that cannot be extended: {entry_text(each)}. A resource has "
                "one entry, with one decision and one list of sources: --replace replaces the entry"
            )
    union = tuple(dict.fromkeys([*(action for each in entries for action in each.actions), *actions]))
    return ("All",) if "All" in union else union


def entry_text(entry: PolicyEntryInfo) -> str:
    """An entry as text for operators: "allow Pub, Sub from 10.0.0.0/8"."""
    sources = f" from {', '.join(entry.source_ips)}" if entry.source_ips else ""
    return f"{'allow' if entry.is_allowed else 'deny'} {', '.join(entry.actions)}{sources}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntryInfo:
    """One entry of a user's policy: allows or denies these actions on this resource from these sources (empty: from
    everywhere).

    `resource` is `Topic:name`, `Group:name`, `Cluster:name`, with `name*` or `*` for more, or `*`; `policy` is CUSTOM or DEFAULT.
    """

    user: str
    resource: str
    actions: tuple[str, ...]
    is_allowed: bool
    policy: str = CUSTOM
    source_ips: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class AccessCalls(AdminCalls):
    """Users and their permissions, at every server that stores users.

    Each raises RemoteSystemError where access control is off, and NoPermission for a user who is not an
    administrator. A change that one server refuses may be stored at others: repeat the call to complete it.
    """

    async def users(self, cluster: str | None = None) -> tuple[UserInfo, ...]:
        """All users, sorted by name. A user whose state differs between servers appears once per state."""
        found: dict[UserInfo, list[str]] = {}
        for address, row in await self._access_rows(RequestCode.AUTH_LIST_USER, cluster):
            info = UserInfo(
                name=_text(row, "username"),
                is_super=_text(row, "userType").lower() == "super",
                is_enabled=_text(row, "userStatus").lower() != "disable",
            )
            found.setdefault(info, []).append(address)
        users = (
            UserInfo(
                name=each.name,
                is_super=each.is_super,
                is_enabled=each.is_enabled,
                addresses=tuple(sorted(where)),
            )
            for each, where in found.items()
        )
        return tuple(sorted(users, key=lambda each: (each.name, each.addresses)))

    async def create_user(
        self,
        name: str,
        secret_key: str,
        *,
        is_super: bool = False,
        cluster: str | None = None,
        address: str | None = None,
    ) -> tuple[str, ...]:
        """Create a user at all servers, or at one; returns the servers' addresses. Raises InvalidParameter for an
        existing user."""
        kind = "Super" if is_super else "Normal"
        body = {"username": name, "password": secret_key, "userType": kind, "userStatus": "enable"}
        return await self._everywhere(
            RequestCode.AUTH_CREATE_USER, {"username": name}, body, cluster, address
        )

    async def update_user(
        self,
        name: str,
        *,
        secret_key: str | None = None,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        cluster: str | None = None,
    ) -> tuple[str, ...]:
        """Change the given attributes of a user; the others stay. Returns the servers' addresses."""
        body = {"username": name}
        if secret_key is not None:
            body["password"] = secret_key
        if is_super is not None:
            body["userType"] = "Super" if is_super else "Normal"
        if is_enabled is not None:
            body["userStatus"] = "enable" if is_enabled else "disable"
        return await self._everywhere(RequestCode.AUTH_UPDATE_USER, {"username": name}, body, cluster)

    async def delete_user(self, name: str, *, cluster: str | None = None) -> tuple[str, ...]:
        """Delete a user with its policies; returns the servers' addresses. An unknown user is not an error."""
        return await self._everywhere(RequestCode.AUTH_DELETE_USER, {"username": name}, None, cluster)

    async def policies(self, user: str = "", cluster: str | None = None) -> tuple[PolicyEntryInfo, ...]:
        """Every entry of every policy, or the entries of users whose name contains `user`; sorted by user, policy,
        resource."""
        ext = {"subjectFilter": user} if user else {}
        found: dict[PolicyEntryInfo, list[str]] = {}
        for address, row in await self._access_rows(RequestCode.AUTH_LIST_ACL, cluster, ext):
            for entry in _entries(row):
                found.setdefault(entry, []).append(address)
        entries = [
            PolicyEntryInfo(
                user=each.user,
                resource=each.resource,
                actions=each.actions,
                is_allowed=each.is_allowed,
                policy=each.policy,
                source_ips=each.source_ips,
                addresses=tuple(sorted(where)),
            )
            for each, where in found.items()
        ]
        return tuple(
            sorted(entries, key=lambda each: (each.user, each.policy, each.resource, each.addresses))
        )

    async def put_policy(
        self,
        user: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        is_allowed: bool,
        policy: str = CUSTOM,
        source_ips: Sequence[str] = (),
        cluster: str | None = None,
    ) -> tuple[str, ...]:
        """Set a user's permissions on the resources, replacing previous ones. Returns the addresses of the servers that store them."""
        subject = SUBJECT.format(user)
        entries = [
            {
                "resource": each,
                "actions": list(actions),
                "sourceIps": list(source_ips),
                "decision": "Allow" if is_allowed else "Deny",
            }
            for each in resources
        ]
        body = {"subject": subject, "policies": [{"policyType": policy, "entries": entries}]}
        return await self._everywhere(RequestCode.AUTH_CREATE_ACL, {"subject": subject}, body, cluster)

    async def delete_policy(
        self, user: str, resource: str | None = None, *, policy: str = CUSTOM, cluster: str | None = None
    ) -> tuple[str, ...]:
        """Remove the entry of one resource from one policy; without a resource, all entries of a user from both
        policies. Returns the servers' addresses."""
        ext = {"subject": SUBJECT.format(user)}
        if resource is not None:
            ext |= {"resource": resource, "policyType": policy}
        return await self._everywhere(RequestCode.AUTH_DELETE_ACL, ext, None, cluster)

    async def copy_policies(
        self, source: str, target: str, user: str | None = None
    ) -> tuple[PolicyEntryInfo, ...]:
        """Copy every user, or one, from one server to another: entries of the same resource are replaced, none is
        deleted.

        `source` and `target` are addresses; returns the written entries, as the source returned them.
        """
        answer = await self._call(source, RequestCode.AUTH_LIST_ACL)
        entries = [
            entry for row in _list(answer, source) for entry in _entries(row) if user in (None, entry.user)
        ]
        for entry in entries:
            subject = SUBJECT.format(entry.user)
            said = {
                "resource": entry.resource,
                "actions": list(entry.actions),
                "sourceIps": list(entry.source_ips),
                "decision": "Allow" if entry.is_allowed else "Deny",
            }
            body = {"subject": subject, "policies": [{"policyType": entry.policy, "entries": [said]}]}
            await self._call(target, RequestCode.AUTH_CREATE_ACL, {"subject": subject}, fastjson.dumps(body))
        return tuple(entries)

    async def is_authenticated(self, broker: str) -> bool:
        """Whether the broker at this address accepts this client's credentials. The request changes nothing and needs
        no permission."""
        ext = {"clientID": "is-authenticated", "producerGroup": "", "consumerGroup": ""}
        try:
            await self._call(broker, RequestCode.UNREGISTER_CLIENT, ext)
        except NoPermission:
            return False
        return True

    async def _keepers(self, cluster: str | None) -> list[str]:
        """Brokers, and the NameServers that store users: other NameServers do not support the request, or have access
        control off."""
        brokers = [info.address for info in await self.brokers(cluster)]
        if not brokers:
            raise NoBroker("no broker is registered at the NameServer")
        nameservers = list(self._session.nameservers.addresses)
        keep = await asyncio.gather(*map(self._keeps_users, nameservers))
        return brokers + [address for address, yes in zip(nameservers, keep, strict=True) if yes]

    async def _keeps_users(self, address: str) -> bool:
        try:
            await self._call(address, RequestCode.AUTH_LIST_USER)
        except (RequestNotSupported, RemoteSystemError):
            return False
        return True

    async def _everywhere(
        self,
        code: RequestCode,
        ext: dict[str, str],
        body: dict[str, Any] | None,
        cluster: str | None,
        address: str | None = None,
    ) -> tuple[str, ...]:
        """Send to the servers one after the other, so that two concurrent changes reach every server in the same
        order."""
        payload = b"" if body is None else fastjson.dumps(body)
        addresses = await self._keepers(cluster) if address is None else [address]
        for each in addresses:
            await self._call(each, code, dict(ext), payload)
        return tuple(addresses)

    async def _access_rows(
        self, code: RequestCode, cluster: str | None, ext: dict[str, str] | None = None
    ) -> Iterable[tuple[str, dict[str, Any]]]:
        addresses = await self._keepers(cluster)
        answers: Sequence[RemotingCommand] = await asyncio.gather(
            *(self._call(address, code, dict(ext or {})) for address in addresses)
        )
        return [
            (address, row)
            for address, answer in zip(addresses, answers, strict=True)
            for row in _list(answer, address)
        ]


def _list(answer: RemotingCommand, address: str) -> list[dict[str, Any]]:
    """An absent body is an empty list. Raises MalformedFrame."""
    rows = fastjson.loads(answer.body, fastjson.TRUSTED_BYTES_MAX) if answer.body else []
    if rows is None:
        return []
    if not isinstance(rows, list) or len(rows) > ROWS_MAX or not all(isinstance(row, dict) for row in rows):
        raise MalformedFrame(f"{address} answered with no list of users or policies")
    return rows


def _entries(row: dict[str, Any]) -> Iterable[PolicyEntryInfo]:
    for policy in _dicts(row, "policies"):
        for entry in _dicts(policy, "entries"):
            actions = entry.get("actions")
            sources = entry.get("sourceIps")
            yield PolicyEntryInfo(
                user=_text(row, "subject").removeprefix(SUBJECT.format("")),
                resource=_text(entry, "resource"),
                actions=_texts(actions),
                is_allowed=_text(entry, "decision").lower() == "allow",
                policy=DEFAULT if _text(policy, "policyType").lower() == "default" else CUSTOM,
                source_ips=_texts(sources),
            )


def _dicts(fields: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = fields.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    """A JSON list, or RocketMQ's form of actions: comma-separated words."""
    if isinstance(value, str):
        return tuple(each.strip() for each in value.split(",") if each.strip())
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
