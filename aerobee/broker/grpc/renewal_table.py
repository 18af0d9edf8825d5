"""Messages whose invisible time the broker renews until their client acknowledges them (auto_renew of ReceiveMessage).

A client keeps the receipt handle that it got, and each renewal makes a new one: the table finds the handle in force by the
first one. A message is renewed RENEW_AHEAD_MS before it would come back, for longer each time (STEPS_MS), until RENEW_MAX_MS have
passed since it was handed out. A renewal that fails is retried until the message comes back. A client that has made no call for CLIENT_SILENT_MS is gone, and its messages come back.

The table is memory alone: after a restart of the broker a message comes back when the time of its last renewal ends.
Source: ReceiptHandleManager, RenewStrategyPolicy (RocketMQ 5.5.0). Core: time is an argument.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from enum import Enum, auto

from aerobee.broker.grpc.receipt_handle import Receipt

FIRST_INVISIBLE_MS = 60_000
RENEW_AHEAD_MS = 10_000
STEPS_MS = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)  # the last one repeats
RENEW_MAX_MS = 10_800_000
CLIENT_SILENT_MS = 120_000
RECEIPTS_MAX = 200_000  # further messages are not renewed, and redelivered after FIRST_INVISIBLE_MS

Client = tuple[str, str]  # client id, user
Key = tuple[str, str]  # group, text of the first receipt handle


class Action(Enum):
    """The action that is due for one message."""

    RENEW = auto()
    GIVE_BACK = auto()  # its client is gone, or has had it for RENEW_MAX_MS


@dataclass(slots=True, eq=False)
class Renewed:
    """One message under renewal. `receipt` is the currently valid one."""

    key: Key
    client: Client
    address: str  # where its client was
    topic: str
    receipt: Receipt
    taken_ms: int
    renewal_count: int = 0
    is_kept: bool = True

    @property
    def group(self) -> str:
        """The consumer group that has it."""
        return self.key[0]

    @property
    def renew_ms(self) -> int:
        """When it has to be renewed."""
        return self.receipt.handle.revive_time - RENEW_AHEAD_MS

    @property
    def step_ms(self) -> int:
        """The next invisible time."""
        return STEPS_MS[min(self.renewal_count, len(STEPS_MS) - 1)]


class RenewalTable:
    """The messages under renewal at one broker. Belongs to its event loop."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Renewed] = {}
        self._of_client: dict[Client, dict[Key, Renewed]] = {}
        self._seen_ms: dict[Client, int] = {}  # of clients with receipts
        self._due: list[tuple[int, int, Renewed]] = []
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._by_key)

    def add(
        self, group: str, client: Client, address: str, topic: str, receipt: Receipt, now_ms: int
    ) -> None:
        """Renew a message that a client was given."""
        if len(self._by_key) >= RECEIPTS_MAX:
            return
        renewed = Renewed((group, str(receipt)), client, address, topic, receipt, now_ms)
        self._by_key[renewed.key] = renewed
        self._of_client.setdefault(client, {})[renewed.key] = renewed
        self._seen_ms[client] = now_ms
        self._push(renewed)

    def find(self, group: str, text: str) -> Renewed | None:
        """The message of a receipt handle, while it is renewed."""
        return self._by_key.get((group, text))

    def remove(self, renewed: Renewed) -> None:
        """Remove a message that was acknowledged, or whose invisible time the client changed."""
        if self._by_key.get(renewed.key) is not renewed:
            return
        renewed.is_kept = False
        del self._by_key[renewed.key]
        of_client = self._of_client[renewed.client]
        del of_client[renewed.key]
        if not of_client:
            del self._of_client[renewed.client]
            self._seen_ms.pop(renewed.client, None)

    def seen(self, client: Client, now_ms: int) -> None:
        """A client has made a call."""
        if client in self._seen_ms:
            self._seen_ms[client] = now_ms

    def leave(self, client: Client, group: str | None = None) -> list[Renewed]:
        """A client left: remove its messages, of one group or all, and return them."""
        found = [
            renewed
            for renewed in self._of_client.get(client, {}).values()
            if group is None or renewed.group == group
        ]
        for renewed in found:
            self.remove(renewed)
        return found

    def due(self, now_ms: int) -> list[tuple[Renewed, Action]]:
        """The due actions. The caller passes each message to renewed(), failed() or remove() next."""
        found: list[tuple[Renewed, Action]] = []
        while self._due and self._due[0][0] <= now_ms:
            renewed = heapq.heappop(self._due)[2]
            if not renewed.is_kept:
                continue
            silent_ms = now_ms - self._seen_ms.get(renewed.client, 0)
            if silent_ms >= CLIENT_SILENT_MS or now_ms - renewed.taken_ms >= RENEW_MAX_MS:
                found.append((renewed, Action.GIVE_BACK))
            elif renewed.renew_ms <= now_ms:
                found.append((renewed, Action.RENEW))
            else:
                self._push(renewed)  # its client has made a call since
        return found

    def renewed(self, renewed: Renewed, receipt: Receipt) -> None:
        """A renewal succeeded: store the message's new receipt."""
        renewed.receipt = receipt
        renewed.renewal_count += 1
        self._push(renewed)

    def failed(self, renewed: Renewed, retry_ms: int) -> None:
        """A renewal failed: retry at `retry_ms`, or forget the message if its invisible time has ended by then."""
        if retry_ms >= renewed.receipt.handle.revive_time:
            self.remove(renewed)
        else:
            heapq.heappush(self._due, (retry_ms, next(self._sequence), renewed))

    def next_due_ms(self) -> int | None:
        """When due() has something next; None when there is nothing to renew."""
        while self._due and not self._due[0][2].is_kept:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _push(self, renewed: Renewed) -> None:
        if len(self._due) > 64 and len(self._due) > 4 * len(self._by_key):
            self._due = [entry for entry in self._due if entry[2].is_kept]
            heapq.heapify(self._due)
        silent_ms = self._seen_ms.get(renewed.client, 0) + CLIENT_SILENT_MS
        heapq.heappush(self._due, (min(renewed.renew_ms, silent_ms), next(self._sequence), renewed))
