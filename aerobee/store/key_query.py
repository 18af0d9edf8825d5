"""Messages by key: what the index names, read and checked (DefaultMessageStore.queryMessage of RocketMQ)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aerobee.store.index_file import KeyIndex
from aerobee.store.stored_message import QueryResult

CANDIDATES_PER_RESULT = (
    4  # some fall away: deleted, not durable yet, or in the right second but outside the range
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuestion:
    """Records indexed under `key` of `topic`, stored in [begin_ms, end_ms]; the newest `count_max` of them.

    `index_type` "T" asks for a tag.
    """

    topic: str
    key: str
    count_max: int
    begin_ms: int = 0
    end_ms: int = 2**63 - 1
    index_type: str = ""


def candidates(index: KeyIndex, question: KeyQuestion) -> list[int]:
    """Physical offsets of what may be meant, newest first. Only hashes are compared."""
    key = f"T#{question.key}" if question.index_type == "T" else question.key
    return index.find(
        question.topic, key, question.begin_ms, question.end_ms, CANDIDATES_PER_RESULT * question.count_max
    )


def answer(
    index: KeyIndex,
    question: KeyQuestion,
    *,
    read_record: Callable[[int], bytes | None],
    record_time: Callable[[int], int],
) -> QueryResult:
    """Read the candidates until there are enough; the result is in log order."""
    records: dict[int, bytes] = {}
    for offset in candidates(index, question):
        record = read_record(offset)
        if record is not None and question.begin_ms <= record_time(offset) <= question.end_ms:
            records[offset] = record
            if len(records) >= question.count_max:
                break
    return QueryResult(
        b"".join(records[offset] for offset in sorted(records)),
        len(records),
        index.last_timestamp,
        index.last_physical_offset,
    )
