"""Signed frames for the fast path with access control."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate
from aerobee.access.policies import PolicyType, acl_from_info
from aerobee.access.users import Users
from aerobee.errors import AerobeeError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.signature import Credentials
from tests.fakes import FakePeer
from tests.fuzz.fastpath_bursts import framed
from tests.unit.broker.sending import Sending

ALICE = Credentials("alice", "alicesecret")
CONFIG = AccessConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootsecret"}',
)
PULL = {
    "consumerGroup": "readers", "topic": "TopicNormal", "queueId": "1", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


def allow(users: Users, resource: str, *actions: str, decision: str = "Allow") -> None:
    entry = {"resource": resource, "actions": list(actions), "decision": decision}
    acl = users.copy_of("User:alice")
    said = acl_from_info({"subject": "User:alice", "policies": [{"entries": [entry]}]})
    acl.merge(PolicyType.CUSTOM, said.policies[PolicyType.CUSTOM])
    users.put_acl(acl)


class World:
    """A broker's parts behind a gate, and what becomes of a frame in them."""

    def __init__(self, path: Path, gate: Gate, users: Users | None = None) -> None:
        self.gate = gate
        self.sending = Sending(path, gate=gate)
        self.sending.groups.find_or_create_all(("readers",))
        self.peer = FakePeer()
        if users is not None:
            self.users = users

    def is_served(self, frame: bytes, peer: FakePeer | None = None) -> bool:
        """Whether the fast path takes it. What it leaves has changed nothing."""
        end = self.sending.store.log.end
        used = self.sending.fast_path.burst(peer or self.peer, frame, 0)  # type: ignore[arg-type]
        assert used in (0, len(frame))
        assert used or self.sending.store.log.end == end
        return used > 0

    def is_let_in(self, frame: bytes, peer: FakePeer | None = None) -> bool:
        """Whether the gate before the handlers lets it in."""
        try:
            self.gate.check(peer or self.peer, decode_frame(frame))  # type: ignore[arg-type]
        except AerobeeError:
            return False
        return True

    def is_refused(self, frame: bytes, peer: FakePeer | None = None) -> bool:
        assert not self.is_let_in(frame, peer), "the test's own fault: this one may be served"
        return not self.is_served(frame, peer)


def signed(frame: bytes, keys: Credentials = ALICE, kind: SerializeType = SerializeType.JSON) -> bytes:
    request = decode_frame(frame)
    request.serialize_type = kind
    keys.sign(request)
    return encode_frame(request)


def changed(frame: bytes, change: Callable[[RemotingCommand], Any]) -> bytes:
    request = decode_frame(frame)
    change(request)
    return encode_frame(request)


def pull(**fields: str) -> bytes:
    return encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE, {**PULL, **fields}))


def in_header(frame: bytes, old: str, new: str) -> bytes:
    size = int.from_bytes(frame[5:8], "big")
    header = frame[8 : 8 + size].decode()
    assert header.count(old) == 1
    return framed(header.replace(old, new).encode(), frame[8 + size :])
