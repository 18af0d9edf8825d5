"""Users of the cluster's access control (ACL 2.0) log in to the console with their secret keys.

A broker verifies the key: the console sends it a request that needs no permission, signed with the key. The user's permissions on the
cluster determine the role: administrators are admin, users with Update are operator, users with Get are viewer, others are refused.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from aerobee.access.policies import SUBJECT_PREFIX, Acl, Decision, PolicyEntry, PolicyType
from aerobee.access.resource import Action, cluster, parse_action, parse_resource
from aerobee.client import Admin, ClientConfig
from aerobee.client.base.results import BrokerInfo
from aerobee.console.users import Role, User
from aerobee.errors import UsageError


class ClusterUsers:
    """Verifies names and keys at the brokers; `admin` is the console's Admin client with an administrator's keys."""

    def __init__(self, admin: Admin, nameserver: str, client: ClientConfig | None) -> None:
        self._admin = admin
        self._nameserver = nameserver
        self._client = client or ClientConfig()

    async def verified(self, name: str, secret_key: str, host: str) -> User | None:
        """The user with the role; None if the name or the key is wrong.

        `host`: the browser's address. Raises RemoteSystemError if the cluster has no access control, UsageError if a broker does
        not verify keys or the user has no Get permission on the cluster.
        """
        known = await self._known(name)
        if known is None or not secret_key:
            return None
        is_super, broker = known
        # A broker that accepts any key (a white list, an open listener) would let every user in.
        if await self._is_key(name, secrets.token_hex(), broker.address):
            raise UsageError(
                f"broker {broker.address} does not verify this console's requests (authenticationWhitelist, accessOpenListeners): "
                f"login with a key is not possible"
            )
        if not await self._is_key(name, secret_key, broker.address):
            return None
        return await self._with_role(name, is_super, broker.cluster, host)

    async def user_of(self, name: str, host: str) -> User | None:
        """The user with the current role; None for a deleted or disabled user. Does not check the key. Raises as verified()."""
        known = await self._known(name)
        return None if known is None else await self._with_role(name, known[0], known[1].cluster, host)

    async def _known(self, name: str) -> tuple[bool, BrokerInfo] | None:
        """Whether the user is an administrator, and a master; None for a user that is unknown, or disabled at any server."""
        found = [each for each in await self._admin.users() if each.name == name]
        brokers = [info for info in await self._admin.brokers() if info.broker_id == 0]
        if not found or not all(each.is_enabled for each in found) or not brokers:
            return None
        return all(each.is_super for each in found), brokers[0]

    async def _with_role(self, name: str, is_super: bool, cluster_name: str, host: str) -> User:
        if is_super:
            return User(name, Role.ADMIN)
        acl = await self._acl(name)
        wanted = cluster(cluster_name)
        for role, action in ((Role.OPERATOR, Action.UPDATE), (Role.VIEWER, Action.GET)):
            if acl.decide(wanted, frozenset({action}), host) is Decision.ALLOW:
                return User(name, role)
        raise UsageError(f"user {name} may not read the cluster: Get on {wanted} is required")

    async def _is_key(self, name: str, secret_key: str, address: str) -> bool:
        client = replace(self._client, access_key=name, secret_key=secret_key)
        async with Admin(self._nameserver, client=client) as admin:
            return await admin.is_authenticated(address)

    async def _acl(self, name: str) -> Acl:
        acl = Acl(SUBJECT_PREFIX + name)
        for each in await self._admin.policies(name):
            if each.user == name:
                entry = PolicyEntry(
                    parse_resource(each.resource),
                    frozenset(map(parse_action, each.actions)),
                    Decision.ALLOW if each.is_allowed else Decision.DENY,
                    each.source_ips,
                )
                acl.merge(PolicyType[each.policy.upper()], [entry])
        return acl
