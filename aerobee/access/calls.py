"""Users and permissions over the wire: requests 3001 to 3010.

Source: CreateUserRequestHeader and related headers, AdminBrokerProcessor (RocketMQ 5.5.0). A successful change is durable.
Replies never contain passwords, unlike RocketMQ's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aerobee.access.policies import Acl, PolicyType, acl_from_info, checked_subject
from aerobee.access.resource import parse_resource
from aerobee.access.users import Users, user_from_info
from aerobee.errors import RemoteError, UsageError
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply


class AccessCalls:
    """Serves these requests at a server with the table `users`. Without access control no_users.py refuses them."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._one_at_a_time = asyncio.Lock()

    def handlers(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.AUTH_CREATE_USER: self._checked(self.create_user),
            RequestCode.AUTH_UPDATE_USER: self._checked(self.update_user),
            RequestCode.AUTH_DELETE_USER: self._checked(self.delete_user),
            RequestCode.AUTH_GET_USER: self._checked(self.get_user),
            RequestCode.AUTH_LIST_USER: self._checked(self.list_users),
            RequestCode.AUTH_CREATE_ACL: self._checked(self.put_acl),
            RequestCode.AUTH_UPDATE_ACL: self._checked(self.put_acl),
            RequestCode.AUTH_DELETE_ACL: self._checked(self.delete_acl),
            RequestCode.AUTH_GET_ACL: self._checked(self.get_acl),
            RequestCode.AUTH_LIST_ACL: self._checked(self.list_acls),
        }

    def create_user(self, users: Users, request: RemotingCommand) -> Reply:
        """3001. Refuses an existing user."""
        name = request.text("username")
        if name in users.users:
            raise UsageError(f"The user {name} already exists; update it instead")
        users.put(user_from_info(_body(request), name))
        return request.reply()

    def update_user(self, users: Users, request: RemotingCommand) -> Reply:
        """3002: changes password, type or status; absent fields stay unchanged."""
        name = request.text("username")
        before = users.users.get(name)
        if before is None:
            raise RemoteError(ResponseCode.USER_NOT_EXIST, f"The user {name} does not exist")
        users.put(user_from_info(_body(request), name, before))
        return request.reply()

    def delete_user(self, users: Users, request: RemotingCommand) -> Reply:
        """3003. Also deletes the user's permissions; an unknown user is not an error."""
        users.remove(request.text("username"))
        return request.reply()

    def get_user(self, users: Users, request: RemotingCommand) -> Reply:
        """3004. No body for an unknown user."""
        found = users.users.get(request.text("username"))
        return request.reply(body=fastjson.dumps(found.to_info()) if found else b"")

    def list_users(self, users: Users, request: RemotingCommand) -> Reply:
        """3005: users whose name contains `filter`."""
        wanted = request.field("filter") or ""
        found = [user.to_info() for name, user in sorted(users.users.items()) if wanted in name]
        return request.reply(body=fastjson.dumps(found) if found else b"")

    def put_acl(self, users: Users, request: RemotingCommand) -> Reply:
        """3006 and 3007: adds entries to the subject; an entry replaces the previous one of the same resource."""
        said = acl_from_info(_body(request), checked_subject(request.text("subject")))
        acl = users.copy_of(said.subject)
        for kind, entries in said.policies.items():
            acl.merge(kind, entries)
        users.put_acl(acl)
        return request.reply()

    def delete_acl(self, users: Users, request: RemotingCommand) -> Reply:
        """3008: deletes one resource of one policy (default Custom); without a resource all of a subject.

        As AuthorizationMetadataManagerImpl.deleteAcl, but a subject without permissions is not an error: a change may be repeated.
        """
        subject = checked_subject(request.text("subject"))
        resource, kind = request.field("resource"), request.field("policyType") or PolicyType.CUSTOM.name
        if kind.upper() not in PolicyType.__members__:
            raise UsageError(f"policyType {kind!r} is neither Custom nor Default")
        acl = users.copy_of(subject)
        if resource and acl.remove(PolicyType[kind.upper()], parse_resource(resource)):
            users.put_acl(acl)
        else:
            users.remove_acl(subject)
        return request.reply()

    def get_acl(self, users: Users, request: RemotingCommand) -> Reply:
        """3009. No body for a subject without permissions."""
        found = users.acls.get(checked_subject(request.text("subject")))
        return request.reply(body=fastjson.dumps(found.to_info()) if found else b"")

    def list_acls(self, users: Users, request: RemotingCommand) -> Reply:
        """3010, by `subjectFilter` and `resourceFilter`."""
        subject, resource = request.field("subjectFilter") or "", request.field("resourceFilter") or ""
        found = [
            acl.to_info()
            for name, acl in sorted(users.acls.items())
            if subject in name and _speaks_of(acl, resource)
        ]
        return request.reply(body=fastjson.dumps(found) if found else b"")

    def _checked(self, serve: Callable[[Users, RemotingCommand], Reply]) -> Handler:
        async def handler(peer: Peer, request: RemotingCommand) -> Reply:
            try:
                async with self._one_at_a_time:  # in a thread: a change waits for the disk
                    return await asyncio.to_thread(serve, self._users, request)
            except UsageError as error:
                raise RemoteError(ResponseCode.INVALID_PARAMETER, str(error)) from None

        return handler


def _speaks_of(acl: Acl, wanted: str) -> bool:
    return not wanted or any(
        wanted in str(entry.resource) for entries in acl.policies.values() for entry in entries
    )


def _body(request: RemotingCommand) -> dict[str, Any]:
    return fastjson.loads_object(request.body, "the body")
