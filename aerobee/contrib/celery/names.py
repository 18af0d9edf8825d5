"""Topic, group and tag names of Kombu's queues, exchanges and routing keys. Core.

A topic name takes the characters `%`, `|`, letters, digits, `_` and `-`. Every other character, and `%` and `|`
themselves, become `%` and two upper-case hex digits for each byte of their UTF-8. A `%` that no hex digit follows is
therefore free for structure:

    QUEUE                    messages of a durable queue            celery, a%2Eb
    VHOST%-QUEUE             the same in virtual host VHOST         shop%-celery
    EXCHANGE%topic           messages of a fanout or topic exchange, for transient queues
    kombu%transient          messages for transient queues by name, and of direct exchanges

Different queues have different topics: the escape is injective, and a name that is too long ends in 128 bits of its
SHA-256.
"""

from __future__ import annotations

import hashlib
import re

from aerobee.errors import UsageError
from aerobee.system_names import NOT_SENDABLE, SYSTEM_PREFIX

# The retry topic of POP is %RETRY%GROUP_TOPIC, at most 255 bytes, and a group name has at most 120.
NAME_CHARS_MAX = 100
_DIGEST_CHARS = 32
_PLAIN = re.compile(r"[a-zA-Z0-9_-]+\Z")
_ESCAPED = re.compile(r"[^a-zA-Z0-9_-]")
_EXCHANGE_SUFFIX = "%topic"
_HASH_PREFIX = "%sha"
# Topics that brokers create for themselves, besides those that refuse every send.
TEMPLATES = frozenset({"TBW102", "BenchmarkTest"})
TRANSIENT = "kombu%transient"
READER_GROUP = "kombu%readers"


def escape(text: str) -> str:
    """`text` in the characters of a topic name, different for different texts."""
    if _PLAIN.match(text):
        return text
    return _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def prefix_of(virtual_host: str) -> str:
    """What the topics of a virtual host begin with; empty for the default one."""
    name = virtual_host.strip("/")
    return f"{escape(name)}%-" if name else ""


def queue_topic(prefix: str, queue: str) -> str:
    """Topic of a durable queue; its consumer group has the same name. Raises UsageError for a name of the system."""
    if not queue:
        raise UsageError("a queue needs a name")
    topic = _bounded(prefix + escape(queue))
    if topic in NOT_SENDABLE or topic in TEMPLATES or topic.lower().startswith(SYSTEM_PREFIX):
        raise UsageError(
            f"the queue {queue!r} would have the topic {topic}, which is reserved: rename the queue, or put a virtual host "
            "into the URL, aerobee://host:9876/shop"
        )
    return topic


def exchange_topic(prefix: str, exchange: str) -> str:
    """Topic of the messages that a fanout or topic exchange has for transient queues."""
    return _bounded(prefix + escape(exchange), _EXCHANGE_SUFFIX)


def transient_topic(prefix: str) -> str:
    """Topic of the messages for transient queues that no exchange topic has."""
    return prefix + TRANSIENT


def queue_tag(queue: str) -> str:
    """Tag of a message for the transient queue of this name."""
    return _bounded(escape(queue))


def direct_tag(exchange: str, routing_key: str) -> str:
    """Tag of a message that a direct exchange has for transient queues."""
    return _bounded(f"{escape(exchange)}%-{escape(routing_key)}")


def key_tag(routing_key: str) -> str:
    """Tag of a message of an exchange topic: the first word of its routing key, `-` without one."""
    return _bounded(escape(routing_key.partition(".")[0])) or "-"


def pattern_tag(pattern: str) -> str:
    """Tag that all messages of a topic exchange have whose routing key matches; `*` when it may be any."""
    first = pattern.partition(".")[0]
    return "*" if "*" in first or "#" in first else key_tag(pattern)


def _bounded(name: str, suffix: str = "") -> str:
    if len(name) + len(suffix) <= NAME_CHARS_MAX:
        return name + suffix
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    kept = NAME_CHARS_MAX - len(suffix) - len(_HASH_PREFIX) - _DIGEST_CHARS
    return f"{name[:kept]}{_HASH_PREFIX}{digest}{suffix}"
