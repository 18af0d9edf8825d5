"""Users of the console: a file with roles and hashed passwords.

    {"alice": {"role": "admin", "password": "scrypt$16384$<salt>$<hash>"}, "bob": {"role": "viewer"}}

`aerobee console --hash-password` prints the hash of a password. A user without a password can only log in by the header of a
reverse proxy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from aerobee.errors import ConfigError

_COST, _BLOCK, _PARALLEL, _SALT_BYTES, _HASH_BYTES = 16_384, 8, 1, 16, 32
_COST_MAX = 1 << 20


class Role(IntEnum):
    """A role includes the permissions of the roles below it."""

    VIEWER = 1  # reads
    OPERATOR = 2  # sends, redrives, resets offsets, resolves transactions, recalls timers
    ADMIN = 3  # creates and deletes topics and groups, changes settings


@dataclass(frozen=True, slots=True)
class User:
    """One entry of the file; `password` is a hash, "" for none."""

    name: str
    role: Role
    password: str = ""


def hash_password(password: str, salt: bytes | None = None) -> str:
    """The hash of a password, as text for the file."""
    salt = salt if salt is not None else secrets.token_bytes(_SALT_BYTES)
    return f"scrypt${_COST}${b64encode(salt).decode()}${b64encode(_hashed(password, salt, _COST)).decode()}"


def is_password(user: User, password: str) -> bool:
    """Whether it is the user's password. Takes some tens of milliseconds by design."""
    if not user.password:
        return False
    _, cost, salt, wanted = user.password.split("$")
    return hmac.compare_digest(_hashed(password, b64decode(salt), int(cost)), b64decode(wanted))


def _hashed(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=cost,
        r=_BLOCK,
        p=_PARALLEL,
        maxmem=256 * cost * _BLOCK,
        dklen=_HASH_BYTES,
    )


def load_users(path: Path) -> dict[str, User]:
    """Read the file. Raises ConfigError that names the entry and the error, never a password."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the users of the console cannot be read from {path}: {error}") from error
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(
            f'{path} has no users: write {{"name": {{"role": "viewer", "password": "scrypt$…"}}}}'
        )
    return {name: _user(path, name, entry) for name, entry in tree.items()}


def _user(path: Path, name: str, entry: object) -> User:
    if not isinstance(entry, dict):
        raise ConfigError(f"{path}: user {name!r} must be an object with a role")
    roles = {role.name.lower(): role for role in Role}
    role = roles.get(str(entry.get("role")))
    if role is None:
        raise ConfigError(
            f"{path}: the role of {name!r} is {entry.get('role')!r}, must be one of {', '.join(roles)}"
        )
    password = entry.get("password", "")
    if not isinstance(password, str) or (password and not _is_hash(password)):
        raise ConfigError(
            f"{path}: the password of {name!r} is no hash; `aerobee console --hash-password` makes one"
        )
    return User(name, role, password)


def _is_hash(text: str) -> bool:
    parts = text.split("$")
    if len(parts) != 4 or parts[0] != "scrypt" or not parts[1].isdecimal():
        return False
    cost = int(parts[1])
    try:
        salt, wanted = (b64decode(part, validate=True) for part in parts[2:])
    except ValueError:
        return False
    return 2 <= cost <= _COST_MAX and cost & (cost - 1) == 0 and len(salt) >= 8 and len(wanted) == _HASH_BYTES
