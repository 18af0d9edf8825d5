"""Renews the invisible time of messages that clients received with auto_renew, as RenewalTable says.

This is the only thing that a proxy remembers: when it stops, such a message comes back after its last renewal. The receipt that the
client has works at another proxy until its first renewal.
"""

from __future__ import annotations

import logging
from functools import partial

from aerobee.broker.grpc.receipt_handle import Receipt
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.grpc.renewal_table import Action, Client, RenewalTable, Renewed
from aerobee.broker.grpc.renewals import RETRY_MS
from aerobee.client.base.tasks import Tasks
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RemoteError
from aerobee.log_throttle import LogThrottle
from aerobee.proxy.background import Background
from aerobee.proxy.handles import INVALID_RECEIPT, Handles

log = logging.getLogger(__name__)

LOOK_S = 1.0


class ProxyRenewals:
    """Looks every LOOK_S for what is due: a renewal begins RENEW_AHEAD_MS before a message would come back."""

    def __init__(self, handles: Handles, tasks: Tasks, clock: Clock) -> None:
        self._handles = handles
        self._work = Background(tasks, "proxy-renewal")
        self._clock = clock
        self.table = RenewalTable()
        self._failures = LogThrottle(log, clock.monotonic)

    @property
    def waiting_count(self) -> int:
        """Renewals that are due and wait for others."""
        return len(self._work)

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Begin what is due now."""
        for renewed, action in self.table.due(self._clock.now_ms()):
            if action is Action.GIVE_BACK:
                self.table.remove(renewed)
                self._handles.give_back(renewed.group, renewed.topic, renewed.receipt)
            elif not self._work.add(partial(self._renew, renewed)):
                self.table.failed(renewed, self._clock.now_ms() + RETRY_MS)

    def add(self, group: str, client: Client, address: str, topic: str, receipt: Receipt) -> None:
        """Renew a message that a client was given."""
        self.table.add(group, client, address, topic, receipt, self._clock.now_ms())

    def seen(self, client: Client) -> None:
        """A client has made a call, and is alive."""
        self.table.seen(client, self._clock.now_ms())

    def client_left(self, client: Client) -> None:
        """Its messages come back soon."""
        for renewed in self.table.leave(client):
            self._handles.give_back(renewed.group, renewed.topic, renewed.receipt)

    async def _renew(self, renewed: Renewed) -> None:
        if not renewed.is_kept:  # acknowledged while it waited
            return
        receipt, now_ms = renewed.receipt, self._clock.now_ms()
        if receipt.handle.revive_time <= now_ms:  # it waited for too long
            self.table.remove(renewed)
            return
        try:
            changed = await self._handles.change(renewed.group, renewed.topic, receipt, renewed.step_ms)
        except (RpcRefused, AerobeeError) as error:  # RpcRefused: no broker has the topic now
            if isinstance(error, RemoteError) and error.code in INVALID_RECEIPT:
                log.info(
                    "receipt handle %s of group %s is no longer renewed: %s", receipt, renewed.group, error
                )
                self.table.remove(renewed)
                return
            text = "receipt handle %s of group %s cannot be renewed now: %s"
            self._failures.warn(renewed.group, text, receipt, renewed.group, error)
            self.table.failed(renewed, self._clock.now_ms() + RETRY_MS)
        else:
            if renewed.is_kept:
                self.table.renewed(renewed, changed)
