"""Queries messages by key: reads the records that the index names, and checks their keys
(DefaultMessageStore.queryMessage of RocketMQ).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Required, TypedDict, Unpack

from aerobee.errors import MalformedRecord
from aerobee.message import decode_record
from aerobee.store.files.config import StoreConfig
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log.dispatch import index_texts
from aerobee.store.log.stored_message import QueryResult
from aerobee.store.read.reader import MessageReader
from aerobee.store.read.store_reads import StoreReads
from aerobee.store.read.warmer import Warmer

# checked first: some are dropped, because the index compares only hashes of topic and key
CANDIDATES_PER_RESULT = 4
# maximum number of checked records: that many of one hash take the event loop about 40 ms
CANDIDATES_MAX = 4_096
_RECORD_BYTES = 4096  # bytes of each record that are loaded into memory; longer records are rare


@dataclass(frozen=True, slots=True)
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


class QueryOptions(TypedDict, total=False):
    """The fields of a KeyQuestion that query() and its other forms take; those of StoreParts have the same."""

    count_max: Required[int]
    begin_ms: int
    end_ms: int
    index_type: str


class KeyQueries:
    """Queries the key index of one store. Belongs to the event loop's thread."""

    def __init__(
        self,
        config: StoreConfig,
        index: KeyIndex,
        reads: StoreReads,
        reader: MessageReader,
        warmer: Warmer,
    ) -> None:
        self._count_max = config.max_msgs_num_batch
        self._index = index
        self._reads = reads
        self._reader = reader
        self._warmer = warmer

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply another bound on results."""
        self._count_max = config.max_msgs_num_batch

    def query(self, topic: str, key: str, **options: Unpack[QueryOptions]) -> QueryResult:
        """The topic's records that match a KeyQuestion, at most maxMsgsNumBatch; the index contains only hashes of
        topic and key, and records with other keys are skipped."""
        return self._answer(self._question(topic, key, options))

    async def query_cold(self, topic: str, key: str, **options: Unpack[QueryOptions]) -> QueryResult:
        """As query, after bringing the records into memory in the executor."""
        question = self._question(topic, key, options)
        candidates = 0
        for bound in _bounds(question.count_max):
            offsets = self._candidates(question, bound)
            await self._warmer.warm([(offset, _RECORD_BYTES) for offset in offsets[candidates:]])
            candidates = len(offsets)
            if candidates < bound or len(self._records(question, bound)) >= question.count_max:
                break
        return self._answer(question)

    def _question(self, topic: str, key: str, options: QueryOptions) -> KeyQuestion:
        bounded = options | {"count_max": min(options["count_max"], self._count_max)}
        return KeyQuestion(topic, key, **bounded)

    def _candidates(self, question: KeyQuestion, bound: int) -> list[int]:
        """Physical offsets of what may be meant, newest first, at most `bound`. The index compares only hashes."""
        return self._index.find(
            question.topic, _key_text(question), question.begin_ms, question.end_ms, bound
        )

    def _answer(self, question: KeyQuestion) -> QueryResult:
        """Read the candidates until there are enough; the result is in log order."""
        records: dict[int, bytes] = {}
        for bound in _bounds(question.count_max):
            records = self._records(question, bound)
            if len(records) >= question.count_max or len(self._candidates(question, bound)) < bound:
                break
        return QueryResult(
            b"".join(records[offset] for offset in sorted(records)),
            len(records),
            self._index.last_timestamp,
            self._index.last_physical_offset,
        )

    def _records(self, question: KeyQuestion, bound: int) -> dict[int, bytes]:
        """The matching records among the first `bound` candidates."""
        records: dict[int, bytes] = {}
        for offset in self._candidates(question, bound):
            record = self._reads.read_record(offset)
            if (
                record is not None
                and question.begin_ms <= self._reader.record_time(offset) <= question.end_ms
                and _is_meant(record, question)
            ):
                records[offset] = record
                if len(records) >= question.count_max:
                    break
        return records


def _bounds(count_max: int) -> Iterator[int]:
    """Number of candidates to read: few first, more when the first ones only share the hash."""
    bound = CANDIDATES_PER_RESULT * count_max
    while bound < CANDIDATES_MAX:
        yield bound
        bound *= 4
    yield max(CANDIDATES_MAX, count_max)


def _key_text(question: KeyQuestion) -> str:
    return f"T#{question.key}" if question.index_type == "T" else question.key


def _is_meant(data: bytes, question: KeyQuestion) -> bool:
    """Whether a record has the topic and the key: the index knows hashes of them, which others have, too."""
    try:
        record = decode_record(data, check_crc=False)
    except MalformedRecord:
        return False
    return record.topic == question.topic and _key_text(question) in index_texts(record.properties)
