"""Answers of tools: bounded JSON, in which everything that clients of the cluster wrote stands under `untrusted`. Core.

A model reads these answers. A producer chooses bodies, keys, tags, properties and message ids, a consumer the text of its last
error: each may hold a sentence that reads like an instruction. JSON quotes them, so that a text cannot end its field, and the name
of the field tells what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerobee.client import ReceivedMessage
from aerobee.client.consumer.dead_letter import DeadLetter
from aerobee.ops.terminal.output import body_text, to_json
from aerobee.ops.terminal.times import moment_text

ANSWER_CHARS_MAX = 60_000
TEXT_CHARS_MAX = 2_000  # of one text in an answer, bodies apart
BODY_CHARS_MAX = 8_000
PROPERTIES_MAX = 50
KEYS_MAX = 20
TOO_LARGE = "the answer is larger than the limit: ask for less"


def answer(document: Mapping[str, Any]) -> str:
    """The document as JSON of at most ANSWER_CHARS_MAX characters.

    Long texts are cut. While the document is too large, its longest list loses its second half; `left_out` counts the removed
    items of each list.
    """
    kept: dict[str, Any] = {key: _clipped(value, name=key) for key, value in document.items()}
    while len(text := to_json(kept)) > ANSWER_CHARS_MAX:
        lists = {key: value for key, value in kept.items() if isinstance(value, list) and len(value) > 1}
        if not lists:
            return to_json({"error": TOO_LARGE, "limit_chars": ANSWER_CHARS_MAX})
        name = max(lists, key=lambda key: len(to_json(lists[key])))
        removed = len(lists[name]) - len(lists[name]) // 2
        kept[name] = lists[name][: len(lists[name]) // 2]
        left_out = dict(kept.get("left_out") or {})
        kept["left_out"] = left_out | {name: left_out.get(name, 0) + removed}
    return text


def message_document(message: ReceivedMessage, body_chars: int) -> dict[str, Any]:
    """Where a message is stored, and under `untrusted` what its producer wrote, the body cut to `body_chars` characters."""
    body, damage = message.body_or_stored()
    text, encoding = body_text(body[: body_chars * 4 + 4])
    if encoding != "utf-8" and _is_text(body, body_chars):
        text, encoding = body[: body_chars * 4 + 4].decode(errors="ignore"), "utf-8"
    properties = dict(list(message.properties.items())[:PROPERTIES_MAX])
    return {
        "topic": message.topic,
        "queue": f"{message.queue.broker_name}/{message.queue.queue_id}",
        "offset": message.queue_offset,
        "offset_message_id": message.offset_message_id,
        "stored": moment_text(message.store_timestamp),
        "reconsume_times": message.reconsume_times,
        "body_bytes": len(body),
        **({"damage": damage} if damage else {}),
        "untrusted": {
            "message_id": message.message_id,
            "tag": message.tag,
            "keys": list(message.keys)[:KEYS_MAX],
            "properties": properties,
            "body": text[:body_chars],
            "body_encoding": encoding,
            "is_body_cut": len(text) > body_chars or len(body) > body_chars * 4 + 4,
        },
    }


def dead_letter_document(dead: DeadLetter, body_chars: int) -> dict[str, Any]:
    """As message_document, with the origin; the reason and the last error are under `untrusted` too."""
    document = message_document(dead.message, body_chars)
    document |= {"group": dead.group, "tries": dead.tries, "died": moment_text(dead.died_ms)}
    document["untrusted"] |= {
        "origin_topic": dead.topic or None,
        "origin_message_id": dead.message_id,
        "reason": dead.reason or None,
        "last_error": dead.error or None,
    }
    return document


def _is_text(body: bytes, body_chars: int) -> bool:
    """Whether a body is UTF-8, though a cut may have split its last character."""
    try:
        body[: body_chars * 4 + 4].decode()
    except UnicodeDecodeError as error:
        return error.start >= body_chars * 4 + 1 and len(body) > body_chars * 4 + 4
    return True


def _clipped(value: Any, *, name: str = "") -> Any:
    """The value with each text cut to TEXT_CHARS_MAX characters, and a body to BODY_CHARS_MAX."""
    if isinstance(value, str):
        limit = BODY_CHARS_MAX if name == "body" else TEXT_CHARS_MAX
        return value if len(value) <= limit else value[:limit] + "…"
    if isinstance(value, Mapping):
        return {str(key)[:TEXT_CHARS_MAX]: _clipped(each, name=str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clipped(each) for each in value]
    return value
