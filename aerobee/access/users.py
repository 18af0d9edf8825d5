"""Users and permissions of ACL 2.0, stored in RocketMQ's location and format.

Source: User, LocalAuthenticationMetadataProvider, LocalAuthorizationMetadataProvider (RocketMQ 5.5.0): two
RocksDB databases, `config/users` (key: the name) and `config/acls` (key: `User:name`), values JSON. A change
is durable before it takes effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Protocol, TypeVar

from aerobee.access.policies import SUBJECT_PREFIX, Acl, acl_from_document
from aerobee.errors import StoreError, UsageError

USERS_MAX = 10_000
NAME = re.compile(r"[\x21-\x7e]{1,128}\Z")
PASSWORD_CHARS_MAX = 255
T = TypeVar("T")


class UserType(IntEnum):
    SUPER = 1
    NORMAL = 2


class UserStatus(IntEnum):
    ENABLE = 1
    DISABLE = 2


@dataclass(frozen=True, slots=True)
class User:
    """One user. The password is the secret key of the user's signatures and never appears in repr()."""

    name: str
    password: str = field(repr=False)
    kind: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if not NAME.match(self.name) or "@" in self.name:
            raise UsageError(
                f"user name {self.name!r}: must have 1 to 128 visible ASCII characters, without @"
            )
        if not self.password or len(self.password) > PASSWORD_CHARS_MAX:
            raise UsageError(f"the password of {self.name} has to have 1 to {PASSWORD_CHARS_MAX} characters")

    def to_info(self) -> dict[str, str]:
        """The body of requests 3004 and 3005, without the password."""
        return {
            "username": self.name,
            "userStatus": self.status.name.lower(),
            "userType": self.kind.name.capitalize(),
        }

    def to_document(self) -> dict[str, Any]:
        return {
            "password": self.password,
            "subjectType": 1,
            "userStatus": self.status.value,
            "userType": self.kind.value,
            "username": self.name,
        }


NO_SECRETS_TOLD = "no server of ours tells a user's secret key, so users cannot be copied from it"


def user_from_info(info: dict[str, Any], name: str, before: User | None = None) -> User:
    """Apply a request's body; absent fields stay unchanged. Raises UsageError."""
    kind, status = str(info.get("userType") or "").upper(), str(info.get("userStatus") or "").upper()
    if kind and kind not in UserType.__members__:
        raise UsageError(f"userType {info.get('userType')!r} is neither Super nor Normal")
    if status and status not in UserStatus.__members__:
        raise UsageError(f"userStatus {info.get('userStatus')!r} is neither enable nor disable")
    password = info.get("password") or (before.password if before else "")
    if not isinstance(password, str):
        raise UsageError("the password is not a text")
    if not password and "password" not in info:
        raise UsageError(f"no password came with user {name}: {NO_SECRETS_TOLD}")
    return User(
        name,
        password,
        UserType[kind] if kind else before.kind if before else UserType.NORMAL,
        UserStatus[status] if status else before.status if before else UserStatus.ENABLE,
    )


class Table(Protocol):
    """A durable map of names to documents. Raises StoreError."""

    def items(self) -> Iterable[tuple[str, bytes]]: ...

    def put(self, key: str, value: bytes) -> None:
        """Durable on return, also after a power loss."""
        ...

    def remove(self, key: str) -> None: ...

    def close(self) -> None: ...


class MemoryTable:
    """A table in memory, without a file."""

    def __init__(self) -> None:
        self._rows: dict[str, bytes] = {}

    def items(self) -> Iterable[tuple[str, bytes]]:
        return list(self._rows.items())

    def put(self, key: str, value: bytes) -> None:
        self._rows[key] = value

    def remove(self, key: str) -> None:
        self._rows.pop(key, None)

    def close(self) -> None:
        self._rows.clear()


class Users:
    """All users and their permissions. `version` increases with each change and invalidates cached decisions."""

    def __init__(self, users: Table, acls: Table) -> None:
        """Load users and permissions. Raises StoreError that names the unreadable entry."""
        self._user_table, self._acl_table = users, acls
        self.version = 0
        self._on_change: list[Callable[[], None]] = []
        self.users: dict[str, User] = dict(_load(users, "user", _user_of))
        self.acls: dict[str, Acl] = dict(_load(acls, "permission", _acl_of))

    def put(self, user: User) -> None:
        """Add or replace a user. Raises UsageError for too many users, StoreError."""
        if user.name not in self.users and len(self.users) >= USERS_MAX:
            raise UsageError(f"there are already {USERS_MAX} users, the maximum: delete one first")
        self._user_table.put(user.name, _dump(user.to_document()))
        self.users[user.name] = user
        self._changed()

    def remove(self, name: str) -> None:
        """Delete a user and its permissions. The permissions are deleted first: after a crash in between a new user of that name
        does not inherit them."""
        self.remove_acl(SUBJECT_PREFIX + name)
        self._user_table.remove(name)
        self.users.pop(name, None)
        self._changed()

    def put_acl(self, acl: Acl) -> None:
        """Replace the permissions of a user. Raises UsageError for an unknown user, StoreError."""
        if acl.subject.removeprefix(SUBJECT_PREFIX) not in self.users:
            raise UsageError(f"{acl.subject} does not exist; create the user first")
        self._acl_table.put(acl.subject, _dump(acl.to_document()))
        self.acls[acl.subject] = acl
        self._changed()

    def remove_acl(self, subject: str) -> None:
        self._acl_table.remove(subject)
        self.acls.pop(subject, None)
        self._changed()

    def copy_of(self, subject: str) -> Acl:
        """The Acl of a subject, to change and store again; an empty one for a subject without permissions."""
        found = self.acls.get(subject)
        return Acl(
            subject, {kind: list(entries) for kind, entries in found.policies.items()} if found else {}
        )

    def ensure_super(self, name: str, password: str) -> None:
        """Create the user of the configuration file if it does not exist; an existing user stays unchanged."""
        if name not in self.users:
            self.put(User(name, password, UserType.SUPER))

    def on_change(self, callback: Callable[[], None]) -> None:
        """`callback` is called after each change, in the thread of the change."""
        self._on_change.append(callback)

    def _changed(self) -> None:
        self.version += 1
        for callback in self._on_change:
            callback()

    def close(self) -> None:
        self._user_table.close()
        self._acl_table.close()


def disabled(user: User) -> User:
    """The same user, disabled."""
    return replace(user, status=UserStatus.DISABLE)


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _load(table: Table, what: str, read: Callable[[str, dict[str, Any]], T]) -> Iterable[tuple[str, T]]:
    for key, value in table.items():
        try:
            document = json.loads(value)
            if not isinstance(document, dict):
                raise ValueError("it is no object")
            yield key, read(key, document)
        except (UsageError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(
                f"the {what} {key!r} of the access control cannot be read: {error}. Access stays refused: restore the "
                "directory config/users or config/acls from a backup, or remove it to start with initAuthenticationUser"
            ) from error


def _user_of(key: str, document: dict[str, Any]) -> User:
    return User(
        key,
        str(document["password"]),
        UserType(document.get("userType", UserType.NORMAL)),
        UserStatus(document.get("userStatus", UserStatus.ENABLE)),
    )


def _acl_of(key: str, document: dict[str, Any]) -> Acl:
    return acl_from_document(document, key)
