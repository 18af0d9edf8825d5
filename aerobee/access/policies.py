"""Users' permissions by ACL 2.0: policies, their order, the decision. No I/O.

Source: Acl, Policy, PolicyEntry, DefaultAuthorizationProvider's chain (RocketMQ 5.5.0). The entries of the
Custom policy that match resource, action and source decide; without one, those of the Default policy; without
one again, the request is denied. Of several entries the most specific one decides: a resource kind before
`*`; a name before a prefix before all; a longer prefix before a shorter one. At a tie an allowing entry
decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from aerobee.access.addresses import network_of
from aerobee.access.resource import Action, Pattern, Resource, ResourceType, parse_action, parse_resource
from aerobee.errors import ConfigError, UsageError

ENTRIES_MAX = 10_000  # maximum number of entries of one subject
SUBJECT_PREFIX = "User:"
_NEAREST_PATTERN = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


class PolicyType(IntEnum):
    CUSTOM = 1
    DEFAULT = 2


class Decision(IntEnum):
    ALLOW = 1
    DENY = 2


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One entry: allows or denies these actions on this resource, from these addresses (none: from all)."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    source_ips: tuple[str, ...] = ()

    def speaks_of(self, resource: Resource, actions: frozenset[Action], host: str) -> bool:
        """Whether the entry applies to a request from `host` that needs any one of `actions`."""
        return (
            self.resource.covers(resource)
            and (Action.ALL in self.actions or Action.ANY in actions or not actions.isdisjoint(self.actions))
            and (not self.source_ips or any(network_of(text)(host) for text in self.source_ips))
        )

    @property
    def _distance(self) -> tuple[int, int, int, int]:
        resource = self.resource
        return (
            resource.kind is ResourceType.ANY,
            _NEAREST_PATTERN[resource.pattern],
            -len(resource.name),
            self.decision.value,
        )


@dataclass(slots=True)
class Acl:
    """All entries of one subject, `User:name`."""

    subject: str
    policies: dict[PolicyType, list[PolicyEntry]] = field(default_factory=dict)

    def decide(self, resource: Resource, actions: frozenset[Action], host: str) -> Decision | None:
        """The decision; None: no entry applies, so the request is denied."""
        for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
            found = [
                entry for entry in self.policies.get(kind, ()) if entry.speaks_of(resource, actions, host)
            ]
            if found:
                return min(found, key=lambda entry: entry._distance).decision
        return None

    def merge(self, kind: PolicyType, entries: Iterable[PolicyEntry]) -> None:
        """Add entries; an entry replaces the previous one of the same resource. Raises UsageError above the limit."""
        by_resource = {entry.resource: entry for entry in self.policies.get(kind, ())}
        by_resource.update((entry.resource, entry) for entry in entries)
        if len(by_resource) > ENTRIES_MAX:
            raise UsageError(
                f"{self.subject} would have {len(by_resource)} entries, at most {ENTRIES_MAX} are kept"
            )
        self.policies[kind] = list(by_resource.values())

    def remove(self, kind: PolicyType, resource: Resource) -> bool:
        """Remove one resource of one policy. Returns whether the subject has entries left."""
        kept = [entry for entry in self.policies.get(kind, ()) if entry.resource != resource]
        self.policies.pop(kind, None)
        if kept:
            self.policies[kind] = kept
        return bool(self.policies)

    # Names in mqadmin (AclInfo) and in the database (Acl)

    def to_info(self) -> dict[str, Any]:
        """The body of requests 3006 to 3010."""
        return {
            "policies": [
                {
                    "entries": [
                        {
                            "actions": [action.name.capitalize() for action in sorted(entry.actions)],
                            "decision": entry.decision.name.capitalize(),
                            "resource": str(entry.resource),
                            "sourceIps": list(entry.source_ips),
                        }
                        for entry in entries
                    ],
                    "policyType": kind.name.capitalize(),
                }
                for kind, entries in self.policies.items()
            ],
            "subject": self.subject,
        }

    def to_document(self) -> dict[str, Any]:
        """The document stored under the subject's name."""
        return {
            "policies": [
                {
                    "entries": [
                        {
                            "actions": sorted(action.value for action in entry.actions),
                            "decision": entry.decision.value,
                            **(
                                {"environment": {"sourceIps": list(entry.source_ips)}}
                                if entry.source_ips
                                else {}
                            ),
                            "resource": _resource_document(entry.resource),
                        }
                        for entry in entries
                    ],
                    "policyType": kind.value,
                }
                for kind, entries in self.policies.items()
            ],
            "subject": {"subjectType": 1, "username": self.subject.removeprefix(SUBJECT_PREFIX)},
        }


def _resource_document(resource: Resource) -> dict[str, Any]:
    named = {} if resource.pattern is Pattern.ANY else {"resourceName": resource.name}
    return {**named, "resourcePattern": resource.pattern.value, "resourceType": resource.kind.value}


def checked_subject(text: str) -> str:
    """`User:name`. Raises UsageError."""
    name = text.removeprefix(SUBJECT_PREFIX)
    if not text.startswith(SUBJECT_PREFIX) or not name or len(name) > 255 or not name.isprintable():
        raise UsageError(f"subject {text!r} is not User:name")
    return text


def acl_from_info(info: Mapping[str, Any], subject: str = "") -> Acl:
    """Decode a request's body. Raises UsageError that names the error."""
    acl = Acl(checked_subject(subject or str(info.get("subject", ""))))
    for policy in _list(info, "policies"):
        word = str(policy.get("policyType") or "Custom").upper()
        if word not in PolicyType.__members__:
            raise UsageError(f"policyType {policy.get('policyType')!r} is neither Custom nor Default")
        acl.merge(PolicyType[word], [_entry_from_info(entry) for entry in _list(policy, "entries")])
    return acl


def acl_from_document(document: Mapping[str, Any], subject: str) -> Acl:
    """Decode a stored ACL. Raises UsageError, ValueError, KeyError, TypeError for an invalid one."""
    acl = Acl(subject)
    for policy in _list(document, "policies"):
        entries = []
        for entry in _list(policy, "entries"):
            kept = entry["resource"]
            resource = Resource(
                ResourceType(kept["resourceType"]),
                str(kept.get("resourceName") or ""),
                Pattern(kept["resourcePattern"]),
            )
            actions = frozenset(Action(number) for number in entry["actions"])
            environment = entry.get("environment") or {}
            sources = tuple(str(text) for text in environment.get("sourceIps") or ())
            entries.append(PolicyEntry(resource, actions, Decision(entry["decision"]), sources))
        acl.merge(PolicyType(policy.get("policyType", PolicyType.CUSTOM)), entries)
    return acl


def _entry_from_info(entry: Mapping[str, Any]) -> PolicyEntry:
    decision = str(entry.get("decision", "")).upper()
    if decision not in Decision.__members__:
        raise UsageError(f"decision {entry.get('decision')!r} is neither Allow nor Deny")
    actions = entry.get("actions")
    if not isinstance(actions, list) or not actions:
        raise UsageError("an entry names no actions")
    sources = entry.get("sourceIps") or []
    if not isinstance(sources, list):
        raise UsageError("sourceIps is not a list")
    for text in sources:
        try:
            network_of(str(text))
        except ConfigError as error:
            raise UsageError(f"sourceIps: {error}") from None
    return PolicyEntry(
        parse_resource(str(entry.get("resource", ""))),
        frozenset(parse_action(str(action)) for action in actions),
        Decision[decision],
        tuple(str(text) for text in sources),
    )


def _list(fields: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = fields.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UsageError(f"{name} is not a list of objects")
    return found
