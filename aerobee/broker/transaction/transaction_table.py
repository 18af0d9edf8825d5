"""Open transactions, the time of each one's next check, and the outcomes of ended ones. Core.

Follows what TransactionalMessageServiceImpl and TransactionalMessageBridge of RocketMQ find out by reading the half and
the op queue again and again; here it is kept in memory and is built from the queues once, at the start.

A transaction is (producer group, transaction id). Its half message lies in the half queue, once when it was sent, again
for each check and each time a producer repeated a send whose answer was lost: these copies are one transaction, and a
decision closes all of them. A half message that arrives after the decision begins a new one.

    prepared() -> open -- decided() --> closed, its copies wait in the op buffer for take_ops()
                   |
                   +-- due() says when to ask; asked() or put_off() says what came of it

Invariants: every open copy is at or after `start`; a copy below it is decided.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from enum import Enum

OUTCOMES_MAX = (
    100_000  # decided transactions whose outcome is remembered; older ones are looked up in the log
)
_TAKEN = -1  # due_ms of a transaction that due() has returned

Key = tuple[str, str]  # producer group, transaction id


class Outcome(Enum):
    """Outcome of a transaction. A producer may still decide a given-up transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"


class OpenTransaction:
    """An undecided transaction. `queue_offset` and `physical_offset` are those of its newest copy.

    `stored_ms` is the store time of its first copy, if known. `immunity_ms` is the time without checks that its
    producer requested, None for the broker's setting. `due_ms` is the time of the next check, None: when the broker's
    immunity time has expired.
    """

    __slots__ = (
        "asked_ms",
        "checks",
        "due_ms",
        "first_offset",
        "immunity_ms",
        "key",
        "keys_and_tag",
        "older",
        "physical_offset",
        "queue_offset",
        "size",
        "stored_ms",
        "topic",
    )

    def __init__(
        self,
        key: Key,
        topic: str,
        queue_offset: int,
        physical_offset: int,
        *,
        stored_ms: int,
        checks: int = 0,
        immunity_ms: int | None = None,
        due_ms: int | None = None,
    ) -> None:
        """Without `due_ms` it is due when its immunity has expired."""
        self.key = key
        self.topic = topic
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        # The oldest copy, also of those that are done with; 0 when a start found later copies only.
        self.first_offset = 0 if checks else queue_offset
        self.stored_ms = stored_ms
        self.checks = checks
        self.immunity_ms = immunity_ms
        self.due_ms = stored_ms + immunity_ms if due_ms is None and immunity_ms is not None else due_ms
        # The newest copy, for the fast path: bytes of its record (0: unknown), KEYS and TAGS.
        self.size = 0
        self.keys_and_tag: tuple[str, str] | None = None
        self.asked_ms = 0  # time of this process's last check
        self.older: tuple[int, ...] = ()  # queue offsets of its other copies

    @property
    def group(self) -> str:
        """The producer's group."""
        return self.key[0]

    @property
    def transaction_id(self) -> str:
        """The producer's id of it."""
        return self.key[1]

    @property
    def copies(self) -> tuple[int, ...]:
        """Queue offsets of all copies."""
        return (*self.older, self.queue_offset)


class TransactionTable:
    """The open transactions of one half queue. Times in ms; nothing here reads a clock."""

    def __init__(self, *, start: int = 0, end: int = 0, op_start: int = 0) -> None:
        """Begin at a half-queue offset below which everything is decided, the queue's end, and an op-queue offset."""
        self.open: dict[int, OpenTransaction] = {}  # by the queue offset of each copy
        self.by_key: dict[Key, OpenTransaction] = {}
        self.counts: dict[str, int] = {}  # topic -> open transactions
        self.outcomes: OrderedDict[Key, Outcome] = OrderedDict()
        self.ops: list[int] = []  # half-queue offsets that are decided and not written yet
        self._next = max(start, end)  # the half queue's end, as far as known
        self._start = start
        self._op_start = op_start
        self._op_records: deque[tuple[int, int]] = deque()  # op-queue offset, largest half offset in it
        self._fresh: deque[OpenTransaction] = deque()  # those with the broker's own immunity, oldest first
        self._due: list[tuple[int, int, OpenTransaction]] = []  # heap of (due, order of entry) for all others
        self._order = 0

    # --- half messages come and are decided

    def prepared(self, transaction: OpenTransaction) -> OpenTransaction:
        """A half message is stored; return the transaction that it belongs to.

        Under the id of an open transaction a half message of another topic is no copy: its sender may have no
        permission for the first one's topic, and would decide the first transaction together with the second. The new
        one counts as rolled back, and the open one is returned.
        """
        offset = transaction.queue_offset
        if offset >= self._next:
            self._next = offset + 1
        known = self.by_key.get(transaction.key)
        if known is not None and known.topic != transaction.topic:
            self.ops.append(offset)
            return known
        if known is not None:
            self._join(known, transaction)
            return known
        self.open[offset] = self.by_key[transaction.key] = transaction
        topic = transaction.topic
        self.counts[topic] = self.counts.get(topic, 0) + 1
        if transaction.due_ms is None:
            fresh = self._fresh
            # bounds its size to about the number of open transactions
            while fresh and fresh[0].queue_offset not in self.open:
                fresh.popleft()
            fresh.append(transaction)
        else:
            self.put_off(transaction, transaction.due_ms)
        return transaction

    def _join(self, known: OpenTransaction, copy: OpenTransaction) -> None:
        """Add one more copy of an open transaction, which remains one transaction."""
        offset = copy.queue_offset
        if offset in known.copies:
            return
        known.size = 0  # the hot path is for transactions of one copy
        self.open[offset] = known
        if offset < known.queue_offset:
            known.older = (*known.older, offset)
        else:
            known.older = known.copies
            known.queue_offset, known.physical_offset = offset, copy.physical_offset
        known.first_offset = min(known.first_offset, copy.first_offset)
        known.checks = max(known.checks, copy.checks)
        known.stored_ms = min(known.stored_ms, copy.stored_ms)
        if copy.due_ms is not None:
            self.put_off(known, copy.due_ms)

    def decided(self, transaction: OpenTransaction, outcome: Outcome) -> None:
        """Close it. The record that carries the decision, if there is one, is in the log already."""
        if transaction.older:
            for offset in transaction.older:
                del self.open[offset]
            self.ops += transaction.older
        offset, key = transaction.queue_offset, transaction.key
        del self.open[offset], self.by_key[key]
        self.ops.append(offset)
        self.counts[transaction.topic] -= 1
        self.remember(key, outcome)

    def closed_copy(self, queue_offset: int, key: Key, outcome: Outcome) -> None:
        """A copy of a decided transaction was found that no op record names."""
        self.ops.append(queue_offset)
        self.remember(key, outcome)

    def remember(self, key: Key, outcome: Outcome) -> None:
        """Record an outcome; it replaces an earlier one."""
        outcomes = self.outcomes
        count = len(outcomes)
        outcomes[key] = outcome
        if len(outcomes) == count:
            outcomes.move_to_end(key)
        elif count >= OUTCOMES_MAX:
            outcomes.popitem(last=False)

    # --- asking

    def due(self, now_ms: int, immunity_ms: int, count_max: int) -> list[OpenTransaction]:
        """Take up to `count_max` transactions that are to be asked about now.

        Each is to be given to asked(), put_off() or decided() next: until then it is not due again.
        """
        taken: list[OpenTransaction] = []
        while len(taken) < count_max:
            self._drop_outdated()
            if self._due and self._due[0][0] <= now_ms:
                transaction = heapq.heappop(self._due)[2]
            elif self._fresh and self._fresh[0].stored_ms + immunity_ms <= now_ms:
                transaction = self._fresh.popleft()
            else:
                break
            transaction.due_ms = _TAKEN
            taken.append(transaction)
        return taken

    def next_due_ms(self, immunity_ms: int) -> int | None:
        """Due time of the next check; None when there is none."""
        self._drop_outdated()
        times = [self._fresh[0].stored_ms + immunity_ms] if self._fresh else []
        if self._due:
            times.append(self._due[0][0])
        return min(times, default=None)

    def _drop_outdated(self) -> None:
        """Remove outdated entries at the front of both queues."""
        fresh, heap, by_key = self._fresh, self._due, self.by_key
        while fresh and (fresh[0].due_ms is not None or by_key.get(fresh[0].key) is not fresh[0]):
            fresh.popleft()
        while heap and (heap[0][2].due_ms != heap[0][0] or by_key.get(heap[0][2].key) is not heap[0][2]):
            heapq.heappop(heap)

    def asked(
        self,
        transaction: OpenTransaction,
        queue_offset: int,
        physical_offset: int,
        *,
        now_ms: int,
        due_ms: int,
    ) -> None:
        """A check was sent about a new copy; the ones before it are done with. Ask again at `due_ms`."""
        for offset in transaction.copies:
            del self.open[offset]
            self.ops.append(offset)
        transaction.older, transaction.size = (), 0
        transaction.queue_offset, transaction.physical_offset = queue_offset, physical_offset
        transaction.checks += 1
        transaction.asked_ms = now_ms
        self.open[queue_offset] = transaction
        self._next = max(self._next, queue_offset + 1)
        self.put_off(transaction, due_ms)

    def put_off(self, transaction: OpenTransaction, due_ms: int) -> None:
        """Schedule its check at `due_ms`, replacing an earlier schedule; counts no check."""
        transaction.due_ms = due_ms
        self._order += 1
        heapq.heappush(self._due, (due_ms, self._order, transaction))

    def clock_set_back(self, now_ms: int, interval_ms: int) -> None:
        """The clock shows less than the store times: let nothing count as stored later than now, or wait longer than one
        that is stored or asked about (each `interval_ms`) now.
        """
        for transaction in self.by_key.values():
            transaction.stored_ms = min(transaction.stored_ms, now_ms)
            due_ms, immunity_ms = transaction.due_ms, transaction.immunity_ms
            latest_ms = now_ms + max(interval_ms, immunity_ms or 0)
            if due_ms is not None and due_ms > latest_ms:
                self.put_off(transaction, latest_ms)

    # --- the op queue and how far everything is decided

    def take_ops(self) -> list[int]:
        """Take the decided offsets that no op record holds yet."""
        ops, self.ops = self.ops, []
        return ops

    def op_written(self, op_queue_offset: int, offsets: list[int]) -> None:
        """An op record with these offsets was written."""
        if offsets:
            self._op_records.append((op_queue_offset, max(offsets)))

    def progress(self) -> tuple[int, int]:
        """Return (half-queue offset, op-queue offset) from which a start reads on: nothing below them is needed."""
        start, end, is_open = self._start, self._next, self.open
        if not is_open:
            start = end
        while start < end and start not in is_open:
            start += 1
        self._start = start
        records = self._op_records
        while records and records[0][1] < start:
            self._op_start = records.popleft()[0] + 1
        if records:
            self._op_start = records[0][0]
        return start, self._op_start
