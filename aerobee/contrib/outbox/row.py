"""A message as a row of the outbox, and back.

| column | content |
|---|---|
| `id` | number of the row, in the order of the inserts |
| `shard` | 0 to 15, from the order key: rows of one key are in one shard, which one relay sends at a time |
| `order_key` | rows with the same key are sent in the order of their ids; empty: no order |
| `dedup_key` | the message's DEDUP_KEY, drawn with the row: a row that is sent again is stored once |
| `topic`, `body`, `tag`, `message_keys`, `properties` | the message; keys are separated by spaces, properties are a JSON object |
| `attempts`, `last_error`, `retry_at_ms` | failed tries, and when the next one is due (ms since the epoch) |
| `created_ms` | when the row was made |
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from aerobee.errors import UsageError
from aerobee.message import Message
from aerobee.property_names import DEDUP_KEY

TABLE, SHARD_TABLE = "aerobee_outbox", "aerobee_outbox_shard"
SHARDS = 16
ORDER_KEY_CHARS_MAX = 255
TOPIC_CHARS_MAX = 127
TAG_CHARS_MAX = 255
ERROR_CHARS_MAX = 500
CHANNEL = "aerobee_outbox"  # of PostgreSQL's NOTIFY


def row_of(
    message: Message,
    key: str = "",
    *,
    dedup_key: str | None = None,
    now_ms: int | None = None,
) -> dict[str, Any]:
    """The values of a new row. Raises UsageError for a message that the outbox cannot keep.

    `key`: order key. `dedup_key` and `now_ms` are for tests.
    """
    if len(key) > ORDER_KEY_CHARS_MAX:
        raise UsageError(
            f"the order key has {len(key)} characters: at most {ORDER_KEY_CHARS_MAX} are possible"
        )
    if message.tag is not None and len(message.tag) > TAG_CHARS_MAX:
        raise UsageError(f"the tag has {len(message.tag)} characters: at most {TAG_CHARS_MAX} are possible")
    if message.delay_level or message.deliver_at is not None or message.deliver_after is not None:
        raise UsageError(
            "the outbox keeps no delayed messages: send one when the row's message is consumed, or use `producer.send`"
        )
    if DEDUP_KEY in message.properties:
        raise UsageError(f"the outbox sets {DEDUP_KEY} itself: leave it out of the properties")
    chosen = dedup_key or uuid.uuid4().hex
    return {
        "shard": zlib.crc32((key or chosen).encode()) % SHARDS,
        "order_key": key,
        "dedup_key": chosen,
        "topic": message.topic,
        "body": bytes(message.body),
        "tag": message.tag or "",
        "message_keys": " ".join(message.keys),
        "properties": json.dumps(dict(message.properties)),
        "attempts": 0,
        "last_error": "",
        "retry_at_ms": 0,
        "created_ms": time.time_ns() // 1_000_000 if now_ms is None else now_ms,
    }


def message_of(row: Mapping[str, Any]) -> Message:
    """The message of a row. Raises UsageError or ValueError for a row that is no message."""
    properties = json.loads(row["properties"] or "{}")
    if not isinstance(properties, dict):
        raise UsageError(f"the properties of row {row['id']} are no JSON object")
    return Message(
        row["topic"],
        bytes(row["body"]),
        tag=row["tag"] or None,
        keys=tuple(row["message_keys"].split()),
        properties={**properties, DEDUP_KEY: row["dedup_key"]},
    )


def retry_pause_ms(attempts: int) -> int:
    """Pause after this number of failed tries: 0.5 s, doubled each time, up to a minute."""
    return min(60_000, 500 << min(attempts - 1, 7))
