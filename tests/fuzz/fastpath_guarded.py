"""Access control in the differential fuzz: users and permissions that change, and frames that are signed, badly, or by another.

What a backend serves goes to the handlers behind a separate gate (access/gate.py): should that gate refuse what a
backend has let in, the replies differ.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate
from aerobee.access.keepers import AccountKeeper, UserKeeper
from aerobee.access.plain_acl import PlainAcl, plain_acl
from aerobee.access.policies import PolicyType, acl_from_info
from aerobee.access.resource import parse_resource
from aerobee.access.users import MemoryTable, User, Users, UserStatus, UserType
from aerobee.errors import AerobeeError
from aerobee.remoting.command import SerializeType
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.signature import ACCESS_KEY, SIGNATURE, Credentials, signature, signed_content
from tests.unit.broker.sending import send_frame

SECRETS = {"alice": "alicesecret", "bob": "bob's s\u00e9cret", "carol": "c" * 200, "root": "rootsecret"}
UNKNOWN_USERS = {"eve": "evesecret", "": "x", "alice ": "alicesecret"}
ENTRIES = (
    ("alice", "Topic:TopicNormal", "Pub,Sub", "Allow", ""), ("alice", "Group:group", "Sub", "Allow", ""),
    ("alice", "Topic:TopicOrder", "Pub", "Allow", ""), ("alice", "Topic:TopicBatch", "All", "Allow", "10.0.0.0/8"),
    ("alice", "Topic:Topic*", "Pub", "Deny", ""), ("bob", "Topic:*", "Pub,Sub", "Allow", ""),
    ("bob", "Group:*", "Sub", "Allow", ""), ("bob", "Topic:TopicDelay", "Pub", "Deny", "10.0.0.1"),
    ("carol", "Topic:Topic*", "Pub,Sub", "Allow", "::1"),
)  # fmt: skip
RULES = (
    '{"accounts": [{"accessKey": "alice12", "secretKey": "alicesecret", "defaultTopicPerm": "PUB", "defaultGroupPerm": "SUB",'
    ' "topicPerms": ["TopicNormal=PUB|SUB", "TopicOrder=DENY"]}, {"accessKey": "bobbobb", "secretKey": "bobsecret", "admin": true}]}',
    '{"accounts": [{"accessKey": "alice12", "secretKey": "another secret", "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB",'
    ' "topicPerms": ["TopicNormal=PUB|SUB"]}]}',
    '{"globalWhiteRemoteAddresses": ["10.0.*.*"], "accounts": [{"accessKey": "alice12", "secretKey": "alicesecret",'
    ' "defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB"}]}',
    '{"accounts": [{"accessKey": "alice12", "secretKey": "alicesecret", "defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB",'
    ' "whiteRemoteAddress": "::1"}]}',
)  # fmt: skip
ACCOUNT_SECRETS = {"alice12": "alicesecret", "bobbobb": "bobsecret"}
_EXT = re.compile(rb'("extFields"\s*:\s*\{)')


class AccessWorld:
    """The access control of one broker: by users, or by accounts of a file."""

    def __init__(self, by_users: bool) -> None:
        self.by_users = by_users
        if by_users:
            self.users = Users(MemoryTable(), MemoryTable())
            for name, secret in SECRETS.items():
                self.users.put(User(name, secret, UserType.SUPER if name == "root" else UserType.NORMAL))
            for entry in ENTRIES:
                self._allow(*entry)
            first = '{"username":"root","password":"rootsecret"}'
            config = AccessConfig(
                authentication_enabled=True, authorization_enabled=True, init_authentication_user=first
            )
            self.gate = Gate(
                keeper=UserKeeper(self.users, config, lambda: "DefaultCluster"), admin_open=False
            )
        else:
            self.accounts = AccountKeeper(rules(0), lambda: "DefaultCluster")
            self.gate = Gate(keeper=self.accounts, admin_open=False)

    def _allow(self, name: str, resource: str, actions: str, decision: str, source: str) -> None:
        entry: dict[str, Any] = {"resource": resource, "actions": actions.split(","), "decision": decision}
        if source:
            entry["sourceIps"] = [source]
        acl = self.users.copy_of(f"User:{name}")
        said = acl_from_info({"subject": f"User:{name}", "policies": [{"entries": [entry]}]})
        acl.merge(PolicyType.CUSTOM, said.policies[PolicyType.CUSTOM])
        self.users.put_acl(acl)

    def change(self, kind: int, number: int) -> None:
        """Users and permissions change, in the same way for the same numbers."""
        if not self.by_users:
            self.accounts.replace_rules(rules(number % len(RULES)))
            return
        name = sorted(SECRETS)[number % 3]
        users = self.users
        if kind == 0:
            users.remove(name)
        elif kind == 1 and name in users.users:
            status = UserStatus.DISABLE if number % 2 else UserStatus.ENABLE
            users.put(replace(users.users[name], status=status))
        elif kind == 2 and name in users.users:
            users.put(replace(users.users[name], password="another secret"))
        elif kind == 3 and name in users.users:
            acl = users.copy_of(f"User:{name}")
            acl.remove(PolicyType.CUSTOM, parse_resource("Topic:TopicNormal"))
            users.put_acl(acl)
        else:  # as it was
            users.put(User(name, SECRETS[name]))
            for entry in ENTRIES:
                if entry[0] == name:
                    self._allow(*entry)


def rules(number: int) -> PlainAcl:
    return plain_acl([("plain_acl.yml", json.loads(RULES[number]))])


def shown(rng: random.Random, frames: list[bytes], *, by_users: bool) -> bytes:
    """The frames with keys: most are signed as they should be, the others by an unknown user, for another frame, or not at all."""
    secrets = SECRETS if by_users else ACCOUNT_SECRETS
    out = []
    for frame in frames:
        kind = rng.random()
        name = rng.choice((*secrets, *secrets, *secrets, *UNKNOWN_USERS)) if kind < 0.9 else ""
        secret = secrets.get(name) or UNKNOWN_USERS.get(name, "")
        made = signed_frame(rng, frame, name, secret) if name else frame
        out.append(attacked(rng, made) if rng.random() < 0.25 else made)
    return b"".join(out)


def signed_run(rng: random.Random, *, by_users: bool) -> bytes:
    """Ordinary sends one behind the other, signed by who may, for native code looks ahead at such. In half of them one was
    changed on its way, or belongs to another user."""
    secrets, known = (SECRETS, "root") if by_users else (ACCOUNT_SECRETS, "bobbobb")
    names = (known,) if rng.random() < 0.5 else (known, *secrets)
    count = rng.choice((2, 5, 17, 33, 50))
    longest = rng.choice((10, 100, 2_000))
    topics = ("TopicNormal",) if rng.random() < 0.5 else ("TopicNormal", "TopicOrder")
    frames = []
    for number in range(count):
        more = {field: str(number) for field in "opq" if rng.random() < 0.1}
        properties = f"UNIQ_KEY\x01{number:032X}\x02" + rng.choice(
            ("", "KEYS\x01\u952e\x02", 'T\x01\u00e9\\"\x02')
        )
        frame = send_frame(
            rng.choice(topics), rng.randbytes(rng.randrange(longest)), properties=properties, **more
        )
        if rng.random() < 0.1:
            request = decode_frame(frame)
            request.serialize_type = SerializeType.ROCKETMQ
            frame = encode_frame(request)
        name = rng.choice(names)
        frames.append(signed_frame(rng, frame, name, secrets[name]))
    if rng.random() < 0.5:
        position = rng.randrange(count)
        frames[position] = attacked(rng, frames[position])
    return b"".join(frames)


def signed_frame(rng: random.Random, frame: bytes, name: str, secret: str) -> bytes:
    """The frame with its signature, its own bytes otherwise as they are."""
    try:
        request = decode_frame(frame)
    except (AerobeeError, ValueError, RecursionError):
        return frame
    if frame[4]:
        Credentials(name, secret).sign(request)
        try:
            return encode_frame(request)
        except AerobeeError:
            return frame
    request.ext = {**(request.ext or {}), ACCESS_KEY: name}
    request.ext.pop(SIGNATURE, None)
    said = signature(secret, signed_content(request))
    fields = [f'"{ACCESS_KEY}":{json.dumps(name)}', f'"{SIGNATURE}":"{said}"']
    rng.shuffle(fields)
    return with_fields(frame, ",".join(fields).encode())


def with_fields(frame: bytes, fields: bytes, *, last: bool = False) -> bytes:
    """Put more fields in front of those that a JSON header has, or behind them."""
    size = int.from_bytes(frame[5:8], "big")
    header, body = frame[8 : 8 + size], frame[8 + size :]
    found = _EXT.search(header)
    if found is None:
        return frame
    end = found.end()
    comma = b"" if header[end:].lstrip()[:1] == b"}" else b","
    if last and comma:
        close = header.rfind(b'"}', end)
        if close < 0:
            return frame
        header = header[: close + 1] + b"," + fields + header[close + 1 :]
    else:
        header = header[:end] + fields + comma + header[end:]
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def attacked(rng: random.Random, frame: bytes) -> bytes:
    """A signed frame that was changed on its way."""
    kind = rng.randrange(7)
    if kind == 0:
        return frame + b"" if len(frame) < 12 else frame[:-1] + bytes((frame[-1] ^ 1,))
    if kind == 1:
        return frame.replace(b"TopicNormal", b"TopicOrder_"[:10] + b"\x20", 1)
    if kind == 2:
        for old, new in (
            (b"TopicOrder", b"TopicBatch"),
            (b"TopicBatch", b"TopicDelay"),
            (b"alice", b"bobby"),
        ):
            if old in frame:
                return frame.replace(old, new, 1)
        return frame
    fields = rng.choice(
        (
            b'"b":"TopicOrder"', b'"topic":"TopicOrder"', b'"AccessKey":"root"', b'"Signature":"AAAA"', b'"zz":""', b'"zz":7',
            b'"consumerGroup":"CID_other"', b'"_UNIQUE_KEY_QUERY":"true"', b'"n\\u0061me":""', b'"i":""', b'"b":"TopicNormal"',
            b'"Signature":null', b'"AccessKey":["alice"]', b'"\xe2\x80\xa8":""', b'"\xf0\x9f\x90\x9d":"","\xef\xbf\xbd":""',
        )
    )  # fmt: skip
    return frame if frame[4:5] != b"\0" else with_fields(frame, fields, last=kind % 2 == 0)
