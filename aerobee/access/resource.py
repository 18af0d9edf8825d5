"""Resources and actions of permissions, and their text form. No I/O.

Source: Action, ResourceType, ResourcePattern, Resource (RocketMQ's ACL 2.0). As text `Topic:orders`, `Topic:orders*`,
`Group:*`, `Cluster:DefaultCluster`, `*`; in stored policies the numbers below.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from aerobee.errors import UsageError


class Action(IntEnum):
    """ANY occurs only in needs of requests, ALL only in policies."""

    ALL = 1
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class ResourceType(IntEnum):
    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class Pattern(IntEnum):
    """ANY: every name. LITERAL: this name. PREFIXED: every name with this prefix."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


ACTIONS = {action.name.capitalize(): action for action in Action}
_TYPES = {kind.name.capitalize(): kind for kind in ResourceType}
NAME_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, or a pattern of resources. `name` is empty for the pattern ANY."""

    kind: ResourceType
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    def covers(self, wanted: Resource) -> bool:
        """Whether a policy for this resource applies to `wanted`, the resource of a request."""
        if self.kind is ResourceType.ANY:
            return True
        if self.kind is not wanted.kind:
            return False
        if self.pattern is Pattern.ANY:
            return True
        if wanted.pattern is not Pattern.LITERAL:
            return False  # the request concerns several resources, the policy only some of them
        if self.pattern is Pattern.LITERAL:
            return self.name == wanted.name
        return wanted.name.startswith(self.name)

    def __str__(self) -> str:
        if self.kind is ResourceType.ANY:
            return "*"
        ending = {Pattern.ANY: "*", Pattern.LITERAL: self.name, Pattern.PREFIXED: f"{self.name}*"}
        return f"{self.kind.name.capitalize()}:{ending[self.pattern]}"


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceType.GROUP, name)


def cluster(name: str) -> Resource:
    return Resource(ResourceType.CLUSTER, name)


def every(kind: ResourceType) -> Resource:
    """All resources of a kind."""
    return Resource(kind, "", Pattern.ANY)


def parse_resource(text: str) -> Resource:
    """Parse `*` or `Kind:name`. Raises UsageError that names the error."""
    if text == "*":
        return Resource(ResourceType.ANY, "", Pattern.ANY)
    kind_text, colon, name = text.partition(":")
    kind = _TYPES.get(kind_text.capitalize())
    if not colon or kind is None or kind is ResourceType.ANY:
        raise UsageError(
            f"resource {text!r} is not `*` or Topic:name, Group:name, Cluster:name (name*, * for more)"
        )
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise UsageError(f"resource {text!r}: a name has 1 to {NAME_CHARS_MAX} printable characters")
    if name == "*":
        return every(kind)
    if name.endswith("*"):
        return Resource(kind, name[:-1], Pattern.PREFIXED)
    return Resource(kind, name)


def parse_action(text: str) -> Action:
    """Parse `Pub`, `Sub`, `All` and so on. Raises UsageError for another word, and for Any, which policies cannot contain."""
    action = ACTIONS.get(text.strip().capitalize())
    if action is None or action is Action.ANY:
        known = ", ".join(name for name, each in ACTIONS.items() if each is not Action.ANY)
        raise UsageError(f"action {text!r} is unknown, there are {known}")
    return action
