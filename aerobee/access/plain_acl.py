"""ACL 1.0: accounts in YAML files, `plain_acl.yml`. No I/O: takes the files' texts.

Source: PlainPermissionManager, PlainAccessResource, AclUtils (RocketMQ 4.9). Decision, in this order: the global white list allows;
an unknown access key is denied; the account's white address allows without a signature; the signature is verified; a send to the
trace topic is allowed; an administrator is allowed; an administrator's request, or another that changes the cluster (RocketMQ has
none: its NameServer knows no accounts), is denied; for each topic and group the account's permission decides, else its default, else
the request is denied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee.access.addresses import Matches, pattern_of
from aerobee.access.needs import Need
from aerobee.access.resource import Action, ResourceType
from aerobee.errors import ConfigError
from aerobee.system_names import TRACE_TOPIC

KEY_CHARS_MIN = 7
PERMISSIONS: Mapping[str, frozenset[Action]] = {
    "DENY": frozenset(),
    "PUB": frozenset({Action.PUB}),
    "SUB": frozenset({Action.SUB}),
    "ANY": frozenset({Action.PUB, Action.SUB}),
    "PUB|SUB": frozenset({Action.PUB, Action.SUB}),
    "SUB|PUB": frozenset({Action.PUB, Action.SUB}),
}
_FIELDS = frozenset(
    {
        "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
        "groupPerms",
    }
)  # fmt: skip


def _nowhere(host: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Account:
    """One access key and its permissions."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    white: Matches = _nowhere
    default_topic: frozenset[Action] = frozenset()
    default_group: frozenset[Action] = frozenset()
    topics: Mapping[str, frozenset[Action]] = field(default_factory=dict)
    groups: Mapping[str, frozenset[Action]] = field(default_factory=dict)

    def may(self, need: Need) -> bool:
        """Whether the account may make the request. Requests that neither send nor consume need only the signature, as in RocketMQ; but
        changes of the cluster need an administrator: brokers and controllers are administrators, they register and elect masters."""
        name, kind = need.resource.name, need.resource.kind
        if kind is ResourceType.CLUSTER and Action.UPDATE in need.actions:
            return self.is_admin
        wanted = need.actions & {Action.PUB, Action.SUB}
        if not wanted:
            return True
        if kind is ResourceType.TOPIC:
            if name == TRACE_TOPIC and wanted == {Action.PUB}:
                return True
            return not wanted.isdisjoint(self.topics.get(name, self.default_topic))
        if kind is ResourceType.GROUP:
            return not wanted.isdisjoint(self.groups.get(name, self.default_group))
        return True


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """The merged rules of all files."""

    accounts: Mapping[str, Account]
    white: tuple[Matches, ...] = ()

    def is_white(self, host: str) -> bool:
        """Whether clients of this address need no authentication."""
        return any(matches(host) for matches in self.white)


def plain_acl(documents: Iterable[tuple[str, Any]]) -> PlainAcl:
    """Merge files: (name, parsed YAML). Of an access key in several files the first applies. Raises ConfigError with file and entry."""
    accounts: dict[str, Account] = {}
    white: list[Matches] = []
    for file, document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ConfigError(f"{file} is no table of keys")
        for text in _list(document, "globalWhiteRemoteAddresses", file):
            white.append(_pattern(str(text), file))
        for position, entry in enumerate(_list(document, "accounts", file), 1):
            account = _account(entry, f"{file}: account {position}")
            accounts.setdefault(account.access_key, account)
    return PlainAcl(accounts, tuple(white))


def _list(document: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = document.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{where}: {key} is not a list")
    return found


def _pattern(text: str, where: str) -> Matches:
    try:
        return pattern_of(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _account(entry: Any, where: str) -> Account:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is no table of keys")
    for key in entry:
        if key not in _FIELDS:
            raise ConfigError(f"{where}: unknown key {key}; known are {', '.join(sorted(_FIELDS))}")
    keys = []
    for key in ("accessKey", "secretKey"):
        value = entry.get(key)
        if not isinstance(value, str | int) or len(str(value)) < KEY_CHARS_MIN:
            raise ConfigError(f"{where}: {key} has to have more than {KEY_CHARS_MIN - 1} characters")
        keys.append(str(value))
    white = str(entry.get("whiteRemoteAddress") or "").strip()
    return Account(
        keys[0],
        keys[1],
        entry.get("admin") is True or str(entry.get("admin")).lower() == "true",
        _pattern(white, where) if white else _nowhere,
        _permission(entry.get("defaultTopicPerm"), where),
        _permission(entry.get("defaultGroupPerm"), where),
        _permissions(entry, "topicPerms", where),
        _permissions(entry, "groupPerms", where),
    )


def _permission(word: Any, where: str) -> frozenset[Action]:
    if word is None or word == "":
        return PERMISSIONS["DENY"]
    found = PERMISSIONS.get(str(word).replace(" ", "").upper())
    if found is None:
        raise ConfigError(f"{where}: permission {word!r} is none of {', '.join(PERMISSIONS)}")
    return found


def _permissions(entry: Mapping[str, Any], key: str, where: str) -> dict[str, frozenset[Action]]:
    permissions: dict[str, frozenset[Action]] = {}
    for text in _list(entry, key, where):
        name, equals, word = str(text).partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                f"{where}: {key} holds {text!r}, write name=PUB, name=SUB, name=PUB|SUB or name=DENY"
            )
        permissions[name.strip()] = _permission(word, where)
    return permissions
