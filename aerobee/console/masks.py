"""Fields of message bodies that the console hides: the browser receives asterisks instead.

orders=card.number,customer.email     these fields of JSON bodies; arrays on the path are descended into
payments*=*                           the whole body, of every topic that begins with payments

A body of such a topic that is no JSON object or array is hidden as a whole: nothing tells where its fields are. So is one that is
larger than BODY_BYTES_MAX, or nested deeply: producers choose how costly a body is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from aerobee.errors import ConfigError
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX
from aerobee.remoting.fastjson import is_nested_deeper
from aerobee.system_names import LMQ_PREFIX, NOT_SENDABLE, SYSTEM_PREFIX

HIDDEN = "***"
BODY_BYTES_MAX = 262_144
WHOLE = "*"
PATH_NAMES_MAX = 64
Path = tuple[str, ...]


class Masks:
    """Hides fields of bodies by the topic of their message."""

    def __init__(self, specs: Iterable[str] = ()) -> None:
        """Raises ConfigError for a text that is not TOPIC=FIELD[,FIELD…]."""
        self._rules: list[tuple[str, tuple[Path, ...]]] = []
        for spec in specs:
            topic, _, fields = spec.partition("=")
            paths = tuple(tuple(each.strip().split(".")) for each in fields.split(","))
            if not topic or not all(all(path) and len(path) <= PATH_NAMES_MAX for path in paths):
                raise ConfigError(
                    f"--mask is {spec!r}: write TOPIC=FIELD[,FIELD…], a field as card.number, or * for the whole body"
                )
            self._rules.append((topic, paths))

    def paths_of(self, topics: Iterable[str]) -> tuple[Path, ...]:
        """The hidden fields of a message, by the names of its topic: its own, and the original one of a retry or a dead letter."""
        names = tuple(topics)
        return tuple(
            path
            for rule, paths in self._rules
            if any(_matches(rule, name) for name in names)
            for path in paths
        )

    def hides(self, topic: str) -> bool:
        """Whether bodies that a topic may contain are hidden in part. Retry, dead-letter and system topics have those of any topic, such as
        delayed messages and half messages, and an LMQ those of its parent."""
        if topic in NOT_SENDABLE or topic.startswith((RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX, SYSTEM_PREFIX)):
            return bool(self._rules)
        return bool(self.paths_of((topic,)))


def masked(body: bytes, paths: tuple[Path, ...]) -> bytes:
    """The body without the fields at `paths`; as a whole if it is not JSON, or if its whole is hidden."""
    if (WHOLE,) in paths or len(body) > BODY_BYTES_MAX:
        return HIDDEN.encode()
    try:
        document = orjson.loads(body)
    except ValueError:
        return HIDDEN.encode()
    if not isinstance(document, dict | list) or is_nested_deeper(document):
        return HIDDEN.encode()
    for path in paths:
        _hide(document, path)
    return orjson.dumps(document)


def _hide(value: Any, path: Path) -> None:
    if isinstance(value, list):
        for each in value:
            _hide(each, path)
    elif isinstance(value, dict) and path[0] in value:
        if len(path) == 1:
            value[path[0]] = HIDDEN
        elif isinstance(value[path[0]], dict | list):
            _hide(value[path[0]], path[1:])
        else:
            value[path[0]] = HIDDEN  # not of the expected form: it may be the field itself


def _matches(rule: str, topic: str) -> bool:
    return topic.startswith(rule[:-1]) if rule.endswith("*") else topic == rule
