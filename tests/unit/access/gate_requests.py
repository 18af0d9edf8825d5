"""Users and requests for the gate of access control."""

from __future__ import annotations

import json
from typing import Any

from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate
from aerobee.access.policies import PolicyType, acl_from_info
from aerobee.access.users import MemoryTable, User, Users
from aerobee.errors import RemoteError
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import Credentials
from tests.fakes import FakePeer

FIRST = '{"username":"root","password":"rootsecret"}'
CONFIG = AccessConfig(authentication_enabled=True, authorization_enabled=True, init_authentication_user=FIRST)


def users() -> Users:
    made = Users(MemoryTable(), MemoryTable())
    made.ensure_super("root", "rootsecret")
    made.put(User("alice", "alicesecret"))
    allow(made, "Topic:orders*", "Pub")
    return made


def allow(made: Users, resource: str, *actions: str, decision: str = "Allow") -> None:
    entry = {"resource": resource, "actions": list(actions), "decision": decision}
    acl = made.copy_of("User:alice")
    said = acl_from_info({"subject": "User:alice", "policies": [{"entries": [entry]}]})
    acl.merge(PolicyType.CUSTOM, said.policies[PolicyType.CUSTOM])
    made.put_acl(acl)


def request(
    code: int, body: dict[str, Any] | None = None, user: str = "alice", **ext: str
) -> RemotingCommand:
    made = RemotingCommand(code, dict(ext), json.dumps(body).encode() if body is not None else b"")
    if user:
        Credentials(user, f"{user}secret").sign(made)
    return made


def refusal(gate: Gate, asked: RemotingCommand, peer: FakePeer | None = None) -> str:
    """What the gate says; empty when it lets the request pass."""
    try:
        gate.check(peer or FakePeer(), asked)
    except RemoteError as error:
        return (error.remark or "?") if error.code == 16 else "another code"
    return ""
