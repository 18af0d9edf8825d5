"""Messages by key: what the index names, read and checked (DefaultMessageStore.queryMessage of RocketMQ)."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.errors import MalformedRecord
from aerobee.message import decode_record
from aerobee.store.config import StoreConfig
from aerobee.store.key_index import KeyIndex
from aerobee.store.reader import MessageReader
from aerobee.store.store_reads import StoreReads
from aerobee.store.stored_message import QueryResult
from aerobee.store.warmer import Warmer

CANDIDATES_PER_RESULT = (
    4  # some fall away: deleted, not durable yet, or in the right second but outside the range
)
_RECORD_BYTES = 4096  # brought into memory of each; longer records are rare


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """Records indexed under `key` of `topic`, stored in [begin_ms, end_ms]; the newest `count_max` of them.

    `index_type` "T" asks for a tag.
    """

    topic: str
    key: str
    count_max: int
    begin_ms: int
    end_ms: int
    index_type: str


class KeyQueries:
    """Asks the key index of one store. Belongs to the event loop's thread."""

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
        """Go on with another bound on results."""
        self._count_max = config.max_msgs_num_batch

    def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        index_type: str = "",
    ) -> QueryResult:
        """Records of the topic that KeyQuestion asks for, at most maxMsgsNumBatch; of the keys only hashes are compared."""
        count_max = min(count_max, self._count_max)
        return self._answer(KeyQuestion(topic, key, count_max, begin_ms, end_ms, index_type))

    async def query_cold(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        index_type: str = "",
    ) -> QueryResult:
        """As query, after bringing the records into memory in the executor."""
        count_max = min(count_max, self._count_max)
        question = KeyQuestion(topic, key, count_max, begin_ms, end_ms, index_type)
        await self._warmer.warm([(offset, _RECORD_BYTES) for offset in self._candidates(question)])
        return self._answer(question)

    def _candidates(self, question: KeyQuestion) -> list[int]:
        """Physical offsets of what may be meant, newest first. Only hashes are compared."""
        key = f"T#{question.key}" if question.index_type == "T" else question.key
        count_max = CANDIDATES_PER_RESULT * question.count_max
        return self._index.find(question.topic, key, question.begin_ms, question.end_ms, count_max)

    def _answer(self, question: KeyQuestion) -> QueryResult:
        """Read the candidates until there are enough; the result is in log order."""
        records: dict[int, bytes] = {}
        for offset in self._candidates(question):
            record = self._reads.read_record(offset)
            if (
                record is not None
                and _topic(record) == question.topic
                and question.begin_ms <= self._reader.record_time(offset) <= question.end_ms
            ):
                records[offset] = record
                if len(records) >= question.count_max:
                    break
        return QueryResult(
            b"".join(records[offset] for offset in sorted(records)),
            len(records),
            self._index.last_timestamp,
            self._index.last_physical_offset,
        )


def _topic(data: bytes) -> str | None:
    """The topic of a record: the index knows a hash of it only, and a message of another topic is nobody's answer here."""
    try:
        return decode_record(data, check_crc=False).topic
    except MalformedRecord:
        return None
