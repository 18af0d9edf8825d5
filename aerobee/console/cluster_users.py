"""Users of the cluster's access control (ACL 2.0) log in to the console with their secret keys.

A broker is asked to verify the key: a request that needs no permission, signed with it. What the user may do at the cluster decides the
role: an administrator is admin; who may update the cluster is operator; who may look at it is viewer; others are not let in.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from aerobee.access.policies import SUBJECT_PREFIX, Acl, Decision, PolicyEntry, PolicyType
from aerobee.access.resource import Action, cluster, parse_action, parse_resource
from aerobee.client import Admin, ClientConfig
from aerobee.console.users import Role, User
from aerobee.errors import UsageError


class ClusterUsers:
    """Verifies names and keys at the brokers; `admin` is the console's own, an administrator's."""

    def __init__(self, admin: Admin, nameserver: str, client: ClientConfig | None) -> None:
        self._admin = admin
        self._nameserver = nameserver
        self._client = client or ClientConfig()

    async def verified(self, name: str, secret_key: str, host: str) -> User | None:
        """The user with the role, None when the name or the key is wrong.

        `host`: the browser's address. Raises RemoteSystemError where no users are kept, UsageError where a broker does not verify keys
        or the user may not even look.
        """
        found = [each for each in await self._admin.users() if each.name == name]
        brokers = [info for info in await self._admin.brokers() if info.broker_id == 0]
        if not found or not secret_key or not all(each.is_enabled for each in found) or not brokers:
            return None
        broker = brokers[0]
        # A broker that takes any key (a white list, an open listener) would let everybody in.
        if await self._is_key(name, secrets.token_hex(), broker.address):
            raise UsageError(
                f"broker {broker.address} does not verify this console's requests (authenticationWhitelist, accessOpenListeners): "
                f"nobody can log in by a key"
            )
        if not await self._is_key(name, secret_key, broker.address):
            return None
        if all(each.is_super for each in found):
            return User(name, Role.ADMIN)
        acl = await self._acl(name)
        wanted = cluster(broker.cluster)
        for role, action in ((Role.OPERATOR, Action.UPDATE), (Role.VIEWER, Action.GET)):
            if acl.decide(wanted, frozenset({action}), host) is Decision.ALLOW:
                return User(name, role)
        raise UsageError(f"user {name} may not look at the cluster: that takes Get on {wanted}")

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
