"""Renews the invisible time of messages when RenewalTable says so, and makes messages of departed clients visible
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aerobee.broker.grpc.receipt_handle import Receipt
from aerobee.broker.grpc.renewal_table import Action, Client, RenewalTable, Renewed
from aerobee.broker.pop.ack_service import AckService, ChangeRequest
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.clock import Clock, Timer, wall_wait_s
from aerobee.errors import RemoteError, StoreError
from aerobee.log_throttle import LogThrottle

log = logging.getLogger(__name__)

GIVE_BACK_MS = 1_000  # invisibleTimeMillsWhenClear
RETRY_MS = 1_000
WAIT_S_MIN = 0.05
INVALID = (
    Reason.HANDLE_ILLEGAL,
    Reason.NOT_HELD,
)  # a receipt that stays invalid; after other refusals it may be renewed later


class Renewals:
    """Executes the actions of a RenewalTable. Belongs to the event loop."""

    def __init__(self, *, acks: AckService, clock: Clock, may_write: Callable[[], bool]) -> None:
        """`may_write`: whether this broker serves POP now. While it does not, Renewals forgets the delivered messages:
        the broker that serves POP redelivers them.
        """
        self._acks = acks
        self._may_write = may_write
        self._clock = clock
        self.table = RenewalTable()
        self._failures = LogThrottle(log, clock.monotonic)
        self._timer: Timer | None = None
        self._armed_ms = 0

    def add(self, group: str, client: Client, address: str, topic: str, receipt: Receipt) -> None:
        """Renew a delivered message until the table removes it (acknowledged, or its client is gone)."""
        self.table.add(group, client, address, topic, receipt, self._clock.now_ms())
        self._arm()

    def seen(self, client: Client) -> None:
        """Record that a client has made a call, and is alive."""
        self.table.seen(client, self._clock.now_ms())

    def client_left(self, client: Client, group: str | None = None) -> None:
        """A client left, or left one group: its unacknowledged messages are redelivered to the group in
        GIVE_BACK_MS.
        """
        for renewed in self.table.leave(client, group):
            self.give_back(renewed.group, renewed.topic, renewed.receipt)

    def give_back(self, group: str, topic: str, receipt: Receipt) -> None:
        """Redeliver, in GIVE_BACK_MS, a message that no client holds. Its number of attempts does not change."""
        handle = receipt.handle
        change = ChangeRequest(
            group, topic, handle.queue_id, handle.queue_offset, handle, GIVE_BACK_MS, suspend=True
        )
        try:
            self._acks.change_invisible(change, "")
        except (Refused, RemoteError, StoreError) as error:
            log.info("message %s of %s comes back when its invisible time ends: %s", receipt, group, error)

    def stop(self) -> None:
        """Stop renewing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due_ms = self.table.next_due_ms()
        if due_ms is None or (self._timer is not None and self._armed_ms <= due_ms):
            return
        self.stop()
        self._armed_ms = due_ms
        self._timer = self._clock.call_later(max(WAIT_S_MIN, wall_wait_s(self._clock, due_ms)), self._run)

    def _run(self) -> None:
        self._timer = None
        if not self._may_write():
            self.table = RenewalTable()
            return
        now_ms = self._clock.now_ms()
        for renewed, action in self.table.due(now_ms):
            if action is Action.GIVE_BACK:
                self.table.remove(renewed)
                self.give_back(renewed.group, renewed.topic, renewed.receipt)
            else:
                self._renew(renewed, now_ms)
        self._arm()

    def _renew(self, renewed: Renewed, now_ms: int) -> None:
        receipt = renewed.receipt
        handle = receipt.handle
        change = ChangeRequest(
            renewed.group, renewed.topic, handle.queue_id, handle.queue_offset, handle, renewed.step_ms
        )
        try:
            changed = self._acks.change_invisible(change, renewed.address)
        except (Refused, RemoteError, StoreError) as error:
            if isinstance(error, Refused) and error.reason in INVALID:
                log.info("message %s of %s is not renewed any more: %s", receipt, renewed.group, error)
                self.table.remove(renewed)
                return
            text = "message %s of %s cannot be renewed now: %s"
            self._failures.warn(renewed.group, text, receipt, renewed.group, error)
            self.table.failed(renewed, now_ms + RETRY_MS)
        else:
            self.table.renewed(renewed, Receipt(changed.handle, receipt.physical_offset))
